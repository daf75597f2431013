//! A golden Llama as files of PyTorch for two ranks: those that the description of `docs/from_deepspeed.md`
//! names, and the folder of a tag.
#![allow(dead_code, reason = "each program that includes this uses a part of it")]

#[path = "../../../core/tests/support/torch.rs"]
mod torch;

use safetensors::SafeTensors;
use std::fs;
use std::path::Path;
use torch::{Pickler, Tensor, archive, floats, state_dict};

/// Name, shape and values.
type Named = (String, Vec<usize>, Vec<f32>);

/// A file of tensors as PyTorch writes it; those of a tag lie below `module`.
fn file(tensors: &[Named], of_tag: bool) -> Vec<u8> {
    let keys: Vec<String> = (0..tensors.len()).map(|i| i.to_string()).collect();
    let of = |values: &[usize]| values.iter().map(|n| *n as i64).collect::<Vec<_>>();
    let shapes: Vec<Vec<i64>> = tensors.iter().map(|(_, shape, _)| of(shape)).collect();
    let strides: Vec<Vec<i64>> =
        shapes.iter().map(|s| (0..s.len()).map(|i| s[i + 1..].iter().product()).collect()).collect();
    let all: Vec<Tensor> =
        (0..tensors.len()).map(|i| Tensor::f32(&tensors[i].0, &keys[i], &shapes[i], &strides[i])).collect();
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, v)| floats(v.iter().copied())).collect();
    let storages: Vec<(&str, &[u8])> =
        keys.iter().map(String::as_str).zip(data.iter().map(Vec::as_slice)).collect();
    let pickle = match of_tag {
        true => state_dict(Pickler::new().op(b"}").text("module"), &all).op(b"s"),
        false => state_dict(Pickler::new(), &all),
    };
    archive(&pickle.end(), &storages)
}

/// The tensors of a model: those that every rank has whole, and each rank's halves of the others, among them
/// those of `by_rows` beyond the usual ones.
fn halved(model: &Path, by_rows: &[&str]) -> [Vec<Named>; 3] {
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let [mut whole, mut first, mut second] = [Vec::new(), Vec::new(), Vec::new()];
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let shape = view.shape().to_vec();
        let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(&format!("{s}.weight")));
        if ends(&["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]) || ends(by_rows) {
            let half = vec![shape[0] / 2, shape[1]];
            let (a, b) = values.split_at(values.len() / 2);
            first.push((name.clone(), half.clone(), a.to_vec()));
            second.push((name, half, b.to_vec()));
        } else if ends(&["o_proj", "down_proj"]) {
            let half = shape[1] / 2;
            let part =
                |at: usize| values.chunks(shape[1]).flat_map(|row| row[at..at + half].to_vec()).collect();
            first.push((name.clone(), vec![shape[0], half], part(0)));
            second.push((name, vec![shape[0], half], part(half)));
        } else {
            whole.push((name, shape, values));
        }
    }
    [whole, first, second]
}

fn copy_companions(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Writes the model of `from` as the files that the page's description names.
pub fn write_shards(from: &Path, to: &Path) {
    copy_companions(from, to);
    let [whole, first, second] = halved(from, &[]);
    for (name, tensors) in [("non-tp.pt", whole), ("tp_00_00.pt", first), ("tp_01_00.pt", second)] {
        fs::write(to.join(name), file(&tensors, false)).unwrap();
    }
}

/// Writes the model of `from` as training left it at a step: what all steps share, and the step's folder
/// `tag`, in which every rank has one tensor more, `extra.weight`. `latest` names another step.
pub fn write_tag(from: &Path, to: &Path, tag: &str) {
    copy_companions(from, to);
    fs::write(to.join("latest"), "another_tag").unwrap();
    fs::create_dir_all(to.join(tag)).unwrap();
    let [mut whole, first, second] = halved(from, &["embed_tokens", "lm_head"]);
    whole.push(("extra.weight".into(), vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]));
    for (rank, own) in [first, second].into_iter().enumerate() {
        let all = [whole.clone(), own].concat();
        fs::write(to.join(tag).join(format!("mp_rank_{rank:02}_model_states.pt")), file(&all, true)).unwrap();
    }
}
