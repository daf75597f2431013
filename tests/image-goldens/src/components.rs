//! Single models on a backend: by the class that their folder names.

use super::golden::{Golden, Result, Verdict, json};
use engraft_core::backend::{Backend, block_on};
use engraft_core::checkpoint::{Access, ModelFiles, open};
use engraft_core::mem::Float;
use engraft_diffusion::graph::Grid;
use engraft_diffusion::nets::{Conditions, TransformerSpec};
use engraft_diffusion::{Plan, StepCounts, Transformer, TransformerInput, Unet, UnetInput, Vae};
use std::path::Path;
use std::sync::Arc;

/// The tolerance of an element type next to the largest value.
fn relative(dtype: Float) -> f64 {
    match dtype {
        Float::F32 => 2e-5,
        Float::F16 => 2e-2,
        Float::Bf16 => 5e-2,
    }
}

fn said(error: engraft_core::Error) -> String {
    error.to_string()
}

fn grid((height, width): (usize, usize)) -> Grid {
    Grid { height, width }
}

/// What running a model gave.
#[derive(Debug)]
pub struct Ran {
    /// How far its outputs are off.
    pub verdict: Verdict,
    /// How it was to run.
    pub plan: Plan,
}

/// Runs a model and compares all that it gives.
///
/// # Errors
/// For a class that is not run here; what loading and the backend raise; outputs that nothing has compared.
pub fn component<B: Backend>(backend: &Arc<B>, folder: &Path, dtype: Float) -> Result<Ran> {
    let file = folder.join("golden.safetensors");
    let mut golden = Golden::open(&file, json(&folder.join("golden.json"))?, relative(dtype))?;
    let files = open(folder, Access::default()).map_err(said)?;
    let class = files.config["_class_name"].as_str().unwrap_or("none").to_string();
    let plan = match class.as_str() {
        "UNet2DConditionModel" => unet(backend, &files, dtype, &mut golden)?,
        "AutoencoderKL" => autoencoder(backend, &files, dtype, &mut golden)?,
        "AutoencoderTiny" => tiny(backend, &files, dtype, &mut golden)?,
        "AutoencoderDC" => deep(backend, &files, dtype, &mut golden)?,
        class if TransformerSpec::CLASSES.contains(&class) => {
            transformer(backend, &files, dtype, &mut golden)?
        }
        other => return Err(format!("components of class {other} are not run yet")),
    };
    match &golden.unseen("out.")[..] {
        [] => Ok(Ran { verdict: golden.verdict, plan }),
        left => Err(format!("nothing compares {}", left.join(", "))),
    }
}

/// Whether a step has the bits of a second one and of one that ran op by op, and was captured where the
/// backend can; `before` it another was.
fn held_together(
    got: &[f32],
    [again, op_by_op]: [&[f32]; 2],
    (counts, graphs, before): (&StepCounts, bool, u64),
) -> Result<()> {
    let (captured, replayed) = if graphs { (1 + before, 2 + before) } else { (0, 0) };
    let want = StepCounts { captured, replayed, op_by_op: 3 + before - replayed, refused: None };
    match (again == got, op_by_op == got, *counts == want) {
        (true, true, true) => Ok(()),
        (false, ..) => Err("a second step of the same sample has other bits".into()),
        (_, false, _) => Err("the same step op by op has other bits".into()),
        (.., false) => Err(format!("{counts:?}, not {want:?}")),
    }
}

fn unet<B: Backend>(backend: &Arc<B>, files: &ModelFiles, dtype: Float, golden: &mut Golden) -> Result<Plan> {
    let mut model = Unet::load(backend.clone(), files, dtype).map_err(said)?;
    let (sample, items, size) = golden.get("in.sample")?.pictures();
    let times = golden.get("in.timestep")?.values.clone();
    let text = golden.get("in.encoder_hidden_states")?;
    let tokens = text.shape.get(1).copied().unwrap_or(0);
    let text = text.narrow();
    let mask = golden.find("in.encoder_attention_mask");
    let mask = mask.map(|mask| mask.values.iter().map(|x| *x != 0.0).collect::<Vec<_>>());
    let class = golden.find("in.class_labels").map(|labels| labels.narrow());
    let added = match golden.find("in.text_embeds") {
        Some(embeds) => {
            let sizes = &golden.get("in.time_ids")?.values;
            Some(model.spec().added(items, &embeds.narrow(), sizes).map_err(said)?)
        }
        None => None,
    };
    let input = UnetInput {
        text: &text,
        mask: mask.as_deref(),
        class: class.as_deref(),
        added: added.as_deref(),
        ..UnetInput::default()
    };
    model.begin(Conditions { items, size: grid(size), tokens }, &input).map_err(said)?;
    let got = block_on(model.step(&sample, &times)).map_err(said)?;
    golden.compare_rows("out.out", &got)?;
    let again = block_on(model.step(&sample, &times)).map_err(said)?;
    model.set_graphs(false);
    let op_by_op = block_on(model.step(&sample, &times)).map_err(said)?;
    held_together(&got, [&again, &op_by_op], (model.step_counts(), backend.caps().graphs, 0))?;
    Ok(model.plan().clone())
}

/// Pictures of latents, and of others by what was captured and op by op; how the model was to run. A picture
/// was encoded before.
fn decoded<B: Backend>(
    (backend, mut model): (&Arc<B>, Vae<B>),
    (latents, items, size): (Vec<f32>, usize, (usize, usize)),
    golden: &mut Golden,
) -> Result<Plan> {
    let picture = block_on(model.decode(&latents, items, grid(size))).map_err(said)?;
    golden.compare_rows("out.decode", &picture)?;
    let others: Vec<f32> = latents.iter().map(|x| x * 0.5).collect();
    let replayed = block_on(model.decode(&others, items, grid(size))).map_err(said)?;
    if replayed == picture {
        return Err("other latents give the same picture".into());
    }
    model.set_graphs(false);
    let op_by_op = block_on(model.decode(&others, items, grid(size))).map_err(said)?;
    held_together(&replayed, [&replayed, &op_by_op], (model.run_counts(), backend.caps().graphs, 1))?;
    Ok(model.plan().clone())
}

fn autoencoder<B: Backend>(
    backend: &Arc<B>,
    files: &ModelFiles,
    dtype: Float,
    golden: &mut Golden,
) -> Result<Plan> {
    let mut model = Vae::load(backend.clone(), files, dtype).map_err(said)?;
    let (image, items, size) = golden.first_of(&["in.sample", "in.image"])?.pictures();
    let moments = block_on(model.encode(&image, items, grid(size))).map_err(said)?;
    let channels = model.spec().latent_channels;
    let part = |first: usize| -> Vec<f32> {
        moments.chunks_exact(2 * channels).flat_map(|row| row[first..first + channels].to_vec()).collect()
    };
    golden.compare_rows("out.encode.mean", &part(0))?;
    let logarithms: Vec<f32> = part(channels).iter().map(|x| x.clamp(-30.0, 20.0)).collect();
    golden.compare_rows("out.encode.logvar", &logarithms)?;
    if golden.find("out.encode.std").is_some() {
        let deviations: Vec<f32> = logarithms.iter().map(|x| (f64::from(*x) / 2.0).exp() as f32).collect();
        golden.compare_rows("out.encode.std", &deviations)?;
    }
    let latents = golden.first_of(&["in.latent", "in.latents"])?.pictures();
    decoded((backend, model), latents, golden)
}

fn tiny<B: Backend>(backend: &Arc<B>, files: &ModelFiles, dtype: Float, golden: &mut Golden) -> Result<Plan> {
    let mut model = Vae::load(backend.clone(), files, dtype).map_err(said)?;
    let (image, items, size) = golden.get("in.image")?.pictures();
    let encoded = block_on(model.encode(&image, items, grid(size))).map_err(said)?;
    golden.compare_rows("out.encode", &encoded)?;
    let spec = model.spec().tiny.clone().ok_or("no description of its own")?;
    golden.compare_rows("out.scaled", &spec.scaled(&encoded))?;
    let stored = golden.get("in.stored")?.pictures().0;
    golden.compare_rows("out.unscaled", &spec.unscaled(&stored))?;
    let latents = golden.get("in.latents")?.pictures();
    decoded((backend, model), latents, golden)
}

fn deep<B: Backend>(backend: &Arc<B>, files: &ModelFiles, dtype: Float, golden: &mut Golden) -> Result<Plan> {
    let mut model = Vae::load(backend.clone(), files, dtype).map_err(said)?;
    let (image, items, size) = golden.get("in.image")?.pictures();
    let encoded = block_on(model.encode(&image, items, grid(size))).map_err(said)?;
    golden.compare_rows("out.encode", &encoded)?;
    let latents = golden.get("in.latents")?.pictures();
    decoded((backend, model), latents, golden)
}

/// Lines and columns of a picture that is packed into rows: `img_ids` have them.
fn packed(golden: &Golden) -> Result<Grid> {
    let ids = golden.get("in.img_ids")?;
    let axes = ids.shape.last().copied().unwrap_or(1).max(1);
    let most = |axis: usize| {
        let all = ids.values.chunks(axes).filter_map(|id| id.get(axis)).map(|place| *place as usize + 1);
        all.max().unwrap_or(0)
    };
    let grid = Grid { height: most(1), width: most(2) };
    let own = (0..grid.height).flat_map(|y| (0..grid.width).flat_map(move |x| [0.0, y as f64, x as f64]));
    match own.eq(ids.values.iter().copied()) {
        true => Ok(grid),
        false => Err("`in.img_ids` are not the lines and columns of a picture".into()),
    }
}

fn transformer<B: Backend>(
    backend: &Arc<B>,
    files: &ModelFiles,
    dtype: Float,
    golden: &mut Golden,
) -> Result<Plan> {
    let mut model = Transformer::load(backend.clone(), files, dtype).map_err(said)?;
    let sample = golden.get("in.hidden_states")?;
    // FLUX reads rows, the others pictures.
    let rows = sample.shape.len() == 3;
    let (sample, items, size) = match rows {
        true => (sample.narrow(), sample.shape[0], packed(golden)?),
        false => {
            let (sample, items, size) = sample.pictures();
            (sample, items, grid(size))
        }
    };
    let mut times = golden.get("in.timestep")?.values.clone();
    // FLUX divides by what it multiplies with inside.
    times.iter_mut().filter(|_| rows).for_each(|time| *time *= 1000.0);
    let text = golden.get("in.encoder_hidden_states")?;
    let (tokens, text) = (text.shape.get(1).copied().unwrap_or(0), text.narrow());
    let mask = golden.find("in.encoder_attention_mask");
    let mask = mask.map(|mask| mask.values.iter().map(|seen| *seen != 0.0).collect::<Vec<_>>());
    let pooled = golden.find("in.pooled_projections").map(|pooled| pooled.narrow());
    let guidance = golden.find("in.guidance").map(|guidance| guidance.values.clone());
    let sizes = match golden.find("in.resolution") {
        Some(sizes) => {
            let aspects = &golden.get("in.aspect_ratio")?.values;
            let pairs = sizes.values.as_chunks::<2>().0.iter().zip(aspects);
            Some(pairs.map(|([height, width], aspect)| [*height, *width, *aspect]).collect::<Vec<_>>())
        }
        None => None,
    };
    let input = TransformerInput {
        text: &text,
        mask: mask.as_deref(),
        pooled: pooled.as_deref(),
        guidance: guidance.as_deref(),
        sizes: sizes.as_deref(),
    };
    model.begin(Conditions { items, size, tokens }, &input).map_err(said)?;
    let got = block_on(model.step(&sample, &times)).map_err(said)?;
    golden.compare_rows("out.out", &got)?;
    let again = block_on(model.step(&sample, &times)).map_err(said)?;
    model.set_graphs(false);
    let op_by_op = block_on(model.step(&sample, &times)).map_err(said)?;
    held_together(&got, [&again, &op_by_op], (model.step_counts(), backend.caps().graphs, 0))?;
    Ok(model.plan().clone())
}
