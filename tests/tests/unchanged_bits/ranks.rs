//! Ranks that share a model: the same tokens, logits and hidden states at every degree, bit for bit.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{cpu, folder};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::compare::Data;
use conformance::device::{Device, Matrix};
use conformance::dice::Dice;
use conformance::golden::{Case, Expectations, Types, find, open_with};
use conformance::oracle::moe::groups;
use conformance::poison::{Grid, Lay};
use conformance::{named, trials::Named};
use engraft_core::backend::{Backend, Composed, Solo, block_on};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{
    Encoded, EncoderInput, Engine, Followers, Kept, Layers, Request, Runner, StepOrder, StepResult, Want,
};
use engraft_core::inject::{GroupPlan, RankPlan, describe, inject};
use engraft_core::mem::{Float, WeightFormat, WeightUse};
use engraft_core::numerics::{LEAF_UNIT, Mode, Share, leaf_bounds_of_groups, rank_columns, tree_of_ranks};
use engraft_core::ops::{Chosen, Combine, ExpertLinear, Groups, Linear};
use engraft_core::params::ExpertShare;
use engraft_core::policy::{Family, ModelSpec, Rank, Registry, Shares, StemSpec};
use engraft_core::quant::encode_rows;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use engraft_cpu::Cpu;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    every_degree_gives_the_bits_of_one_rank,
    in_16_bits_in_chunks_op_by_op_and_composed,
    parts_of_experts_give_the_bits_of_whole_ones,
    groups_with_parts_of_experts_give_the_bits_of_one_rank,
    nodes_of_ranks_are_the_sums_of_one,
    a_plan_says_what_each_rank_has,
    orders_carried_out_by_another_runner_give_the_same,
    what_a_rank_cannot_load_ends_the_group,
];
pub const ON_CUDA: &[Named] = &named![devices_give_the_bits_of_one_rank_on_cuda];
pub const ON_WGPU: &[Named] = &named![devices_give_the_bits_of_one_rank_on_wgpu];

/// Degrees above 1.
const DEGREES: [usize; 3] = [2, 4, 8];

fn goldens() -> Vec<PathBuf> {
    let mut all = find(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")).unwrap();
    all.retain(|dir| dir.join("config.json").exists());
    all.sort();
    all
}

/// What a model gives: of each request its tokens, and lists of what was kept of it. As bits, so that -0 and
/// NaN count.
type Given = Vec<Vec<u32>>;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Prompts of several lengths, greedy and sampled, penalised or not, some with all that may be kept, some
/// with nothing, so that decode steps of buckets are among the rest.
fn requests(vocab: usize) -> Vec<Request> {
    let ids = |length: usize| (0..length).map(|i| ((7 * i + 3 * length) % (vocab - 3) + 3) as u32).collect();
    let sampled = SamplingParams {
        temperature: 0.9,
        repetition_penalty: 1.2,
        seed: Some(5),
        ..SamplingParams::default()
    };
    let all = Want { logits: true, hidden: Layers::All, logprobs: false };
    let of = |length, sampling, want| Request {
        prompt: ids(length),
        max_new_tokens: 6,
        sampling,
        want,
        ..Request::default()
    };
    vec![
        of(9, SamplingParams::default(), all),
        of(1, sampled, Want::default()),
        of(5, SamplingParams::default(), Want::default()),
        of(13, sampled, all),
    ]
}

/// A sound for a request of so many tokens: as long as the model reads them, or of as many rows and a bit.
fn sound(stem: &StemSpec, length: usize) -> Arc<[f32]> {
    let frames = if stem.exact { stem.frames } else { stem.frames_for(length) + length };
    (0..frames * stem.columns).map(|i| ((i * (5 + length)) % 97) as f32 / 48.0 - 1.0).collect()
}

/// The same of a model whose encoder reads sound: each another one.
fn of_sound(stem: Option<&StemSpec>, requests: Vec<Request>) -> Vec<Request> {
    let heard = |request: Request| match stem {
        None => request,
        Some(stem) => Request {
            features: sound(stem, request.prompt.len()),
            decoder_prompt: request.prompt,
            prompt: Vec::new(),
            ..request
        },
    };
    requests.into_iter().map(heard).collect()
}

fn decode<B: Backend>(mut engine: Engine<B>, requests: Vec<Request>) -> Result<Given> {
    let ids = requests.into_iter().map(|r| engine.put(r)).collect::<Result<Vec<_>>>()?;
    let mut tokens = engine.run()?;
    let mut given = Vec::new();
    for id in ids {
        given.push(tokens.remove(&id).unwrap_or_default());
        let Kept { hidden, logits, pooled, .. } = engine.take_kept(id).unwrap_or_default();
        given.extend(hidden.iter().chain([&logits, &pooled]).map(|values| bits(values)));
    }
    Ok(given)
}

fn encode<B: Backend>(mut engine: Engine<B>, spec: &ModelSpec) -> Result<Given> {
    let text = |length| match spec.stem() {
        Some(stem) => EncoderInput { features: sound(stem, length), ..EncoderInput::default() },
        None => EncoderInput {
            ids: (0..length).map(|i| ((5 * i + length) % (spec.vocab - 3) + 3) as u32).collect(),
            ..EncoderInput::default()
        },
    };
    let texts: Vec<EncoderInput> = [4, 5, 1].map(text).into();
    lists(engine.encode(&texts, Layers::All)?)
}

fn see<B: Backend>(mut engine: Engine<B>, values: usize) -> Result<Given> {
    let image: Vec<f32> = (0..values).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    lists(engine.encode_images(&[&image, &image[..]], Layers::All)?)
}

fn lists(encoded: Vec<Encoded>) -> Result<Given> {
    let mut given = Vec::new();
    for one in encoded {
        given.extend(one.hidden.iter().chain([&one.logits, &one.pooled]).map(|values| bits(values)));
    }
    Ok(given)
}

fn run<B: Backend>(backend: &Arc<B>, dir: &Path, types: Types, config: EngineConfig) -> Result<Given> {
    let files = checkpoint::open(dir, Access::default())?;
    let (spec, ..) = describe(&files, &Registry::default())?;
    let config = EngineConfig { dtype: types.dtype, kv_dtype: types.dtype.into(), ..config };
    let stem = spec.stem();
    // What the encoder makes of a sound lies before the text.
    let max_context = config.max_context + stem.map_or(0, |stem| stem.tokens());
    let config = EngineConfig { max_context, ..config };
    let engine = open_with(backend, dir, config, &Registry::default(), types)?;
    if let Some(image) = spec.embed.patches {
        return see(engine, image.channels * image.image * image.image);
    }
    match spec.family {
        Family::Decoder => decode(engine, of_sound(stem, requests(spec.vocab))),
        _ => encode(engine, &spec),
    }
}

/// Whether the ranks of a group can share the model, and what they say if not.
fn refusal(dir: &Path) -> Option<String> {
    let files = checkpoint::open(dir, Access::default()).unwrap();
    let (spec, ..) = describe(&files, &Registry::default()).ok()?;
    Shares::of(&spec, Rank::new(0, 2).unwrap(), None, &|_| None).err().map(|error| error.to_string())
}

fn law<B: Backend>(
    backend: &Arc<B>,
    goldens: &[PathBuf],
    types: Types,
    degrees: &[usize],
    config: &EngineConfig,
) -> usize {
    let mut held = 0;
    // Blocks that ranks would split: listed, and refused by name.
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("expectations/cpu.json");
    let expected = Expectations::read(&expected).unwrap();
    for dir in goldens {
        if refusal(dir).is_some() {
            continue;
        }
        let case = Case::read(dir).unwrap();
        let name = dir.display();
        let want = match run(backend, dir, Types { ep: None, ..types }, config.clone()) {
            Ok(given) => given,
            // Towers of several models have no engine of their own.
            Err(Error::NoPolicy { .. }) => continue,
            Err(error) => panic!("{name}: {error}"),
        };
        for &tp in degrees {
            let given = run(backend, dir, Types { tp, ..types }, config.clone());
            if let (Err(error), Some(_)) = (&given, expected.reason(&case, tp)) {
                assert!(error.to_string().contains("would split"), "{name}, {tp} ranks: {error}");
                continue;
            }
            let got = given.unwrap_or_else(|error| panic!("{name}, {tp} ranks: {error}"));
            let same = got.iter().zip(&want).position(|(got, want)| got != want);
            assert!(
                got.len() == want.len() && same.is_none(),
                "{name}, {tp} ranks of {types:?}: list {same:?}"
            );
            held += 1;
        }
    }
    held
}

fn config() -> EngineConfig {
    EngineConfig { max_context: 32, max_seqs: 4, logit_rows: Some(usize::MAX), ..EngineConfig::default() }
}

fn every_degree_gives_the_bits_of_one_rank() {
    let held = law(&cpu(), &goldens(), Float::F32.into(), &DEGREES, &config());
    assert!(held >= 100, "{held}");
}

fn in_16_bits_in_chunks_op_by_op_and_composed() {
    let bf16 = Types { weights: Some(Float::Bf16), ..Float::Bf16.into() };
    let chunks =
        EngineConfig { max_step_tokens: 13, graphs: false, page_size: 4, page_seed: Some(3), ..config() };
    assert!(law(&cpu(), &goldens(), bf16, &DEGREES, &chunks) >= 100);
    let composed = Arc::new(Composed::new(cpu()));
    assert!(law(&composed, &goldens(), Float::F16.into(), &DEGREES, &config()) >= 100);
}

/// Every rank has a part of each expert: sums of slots are shared before they are weighed.
fn parts_of_experts_give_the_bits_of_whole_ones() {
    let goldens: Vec<_> = goldens().into_iter().filter(|dir| has_experts(dir)).collect();
    for types in [Float::F32.into(), Types { weights: Some(Float::Bf16), ..Float::Bf16.into() }] {
        let types = Types { ep: Some(1), ..types };
        assert!(law(&cpu(), &goldens, types, &DEGREES, &config()) >= 9);
    }
    let composed = Arc::new(Composed::new(cpu()));
    let types = Types { ep: Some(1), ..Float::F16.into() };
    assert!(law(&composed, &goldens, types, &[4], &config()) >= 3);
}

/// Groups of ranks share whole experts, and the ranks of a group have parts of them.
fn groups_with_parts_of_experts_give_the_bits_of_one_rank() {
    let goldens: Vec<_> = goldens().into_iter().filter(|dir| has_experts(dir)).collect();
    let bf16 = Types { weights: Some(Float::Bf16), ..Float::Bf16.into() };
    for (types, ep) in [(Float::F32.into(), 2), (bf16, 2), (bf16, 4)] {
        let types = Types { ep: Some(ep), ..types };
        let degrees: Vec<usize> = DEGREES.into_iter().filter(|tp| *tp > ep).collect();
        assert!(law(&cpu(), &goldens, types, &degrees, &config()) >= 3 * degrees.len());
    }
    let composed = Arc::new(Composed::new(cpu()));
    let types = Types { ep: Some(2), ..Float::F16.into() };
    assert!(law(&composed, &goldens, types, &[4], &config()) >= 3);
    for (tp, ep, allowed) in [(4, 8, "1, 2, 4"), (2, 3, "1, 2"), (1, 2, "1"), (8, 0, "1, 2, 4, 8")] {
        let refused = run(&cpu(), &goldens[0], Types { tp, ep: Some(ep), ..Float::F32.into() }, config());
        let error = refused.map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("`ep` is {ep}; allowed: {allowed}, for {tp} ranks")), "{error}");
    }
}

fn has_experts(dir: &Path) -> bool {
    let files = checkpoint::open(dir, Access::default()).unwrap();
    describe(&files, &Registry::default()).is_ok_and(|(spec, ..)| spec.blocks.iter().any(|b| b.moe.is_some()))
}

/// The values of a matmul of x `[rows, k]` with w `[n, k]`, and the nodes of its ranks, by f32 outputs.
fn whole_and_nodes<B: Backend>(
    backend: &Arc<B>,
    dice: &mut Dice,
    format: WeightFormat,
    (rows, n, k): (usize, usize, usize),
    (grain, group): (usize, usize),
) -> (Vec<f32>, Vec<[Vec<f32>; 8]>) {
    let mut dev = Device::new(backend, false).unwrap();
    let dtype = if format == WeightFormat::Plain(Float::F32) { Float::F32 } else { Float::Bf16 };
    let x = Grid::random(dice, rows, k, dtype, 1.0);
    let w = dice.values(n * k, 1.0, Float::F32);
    let matrix = |columns: Range<usize>| {
        let values: Vec<f32> = w.chunks_exact(k).flat_map(|row| row[columns.clone()].to_vec()).collect();
        let mut bytes = vec![0; format.bytes(n, columns.len())];
        encode_rows(format, columns.len(), &values, &mut bytes);
        Matrix { rows: n, cols: columns.len(), format, bytes }
    };
    let x = dev.grid(&x).unwrap();
    let mut sums = |columns: Range<usize>, used_for: WeightUse| -> Vec<f32> {
        let w = dev.weight(&matrix(columns.clone()), used_for, 1).unwrap();
        let mut out = dev.output(rows, n, Float::F32, Lay::default()).unwrap();
        dev.launch(|to| {
            let x = x.view()?.columns(columns)?;
            to.run(Linear::new(x, &w, None, out.view_mut()?))
        })
        .unwrap();
        match dev.read(&out, "out").unwrap().data {
            Data::Floats { values, .. } => values,
            Data::Words(_) => panic!("words"),
        }
    };
    let whole = sums(0..k, WeightUse::Linear { grain, group });
    let bounds = leaf_bounds_of_groups(k, format.grain(grain), group);
    let of_degree = |sums: &mut dyn FnMut(Range<usize>, WeightUse) -> Vec<f32>, world: usize| {
        std::array::from_fn(|rank| match rank < world {
            true => {
                let columns = rank_columns(&bounds, rank, world);
                let share = Share::new(&bounds, rank, world).unwrap();
                match columns.is_empty() {
                    true => vec![0.0; rows * n],
                    false => sums(columns, WeightUse::LinearShare { share }),
                }
            }
            false => Vec::new(),
        })
    };
    (whole, DEGREES.map(|world| of_degree(&mut sums, world)).into())
}

/// Experts of ranks add up to those of one: every rank multiplies its own slots, whatever lies in the others,
/// and adds a node.
fn experts_add_up<B: Backend>(backend: &Arc<B>, dtype: Float) {
    const COUNT: usize = 11;
    let (mut dev, mut dice) = (Device::new(backend, false).unwrap(), Dice::new(5));
    for (tokens, top_k) in [(1, 2), (7, 3), (40, 4)] {
        let (x, n) = (Grid::random(&mut dice, tokens, 48, dtype, 1.0), 20);
        let w = dice.values(COUNT * n * 48, 1.0, dtype);
        let weights = Grid::random(&mut dice, tokens, top_k, Float::F32, 1.0);
        let bias = dice.values(COUNT * n, 1.0, Float::F32);
        let experts: Vec<u32> = (0..tokens)
            .flat_map(|_| {
                let mut chosen = dice.shuffled(COUNT)[..top_k].to_vec();
                chosen.sort_unstable();
                chosen.into_iter().map(|e| e as u32)
            })
            .collect();
        let mut node = |share: ExpertShare| {
            let own = share.experts();
            let format = WeightFormat::Plain(dtype);
            let mut bytes = vec![0; format.bytes(own.len() * n, 48)];
            encode_rows(format, 48, &w[own.start * n * 48..own.end * n * 48], &mut bytes);
            let matrix = Matrix { rows: own.len() * n, cols: 48, format, bytes };
            let used_for = WeightUse::Experts { count: own.len(), grain: 1 };
            let w = dev.weight(&matrix, used_for, 1).unwrap();
            let bias = dev.vector(&bias[own.start * n..own.end * n]).unwrap();
            let (x, weights) = (dev.grid(&x).unwrap(), dev.grid(&weights).unwrap());
            let grouped = dev.buffer(&groups(&experts, COUNT)).unwrap();
            let experts = dev.buffer(&experts).unwrap();
            // Poisoned: what is not written here must not be read.
            let mut y = dev.output(tokens * top_k, n, dtype, Lay::default()).unwrap();
            let mut out = dev.output(tokens, n, Float::F32, Lay::default()).unwrap();
            dev.launch(|to| {
                let groups = Groups { experts: experts.view(), groups: grouped.view(), count: COUNT };
                let (bias, first) = (Some(&bias), own.start);
                to.run(ExpertLinear { x: x.view()?, weight: &w, bias, groups, first, out: y.view_mut()? })
            })
            .unwrap();
            dev.launch(|to| {
                let chosen = Some(Chosen { experts: experts.view(), share });
                let (y, weights, out) = (y.view()?, weights.view()?, out.view_mut()?);
                to.run(Combine { y, weights, chosen, add: false, out })
            })
            .unwrap();
            match dev.read(&out, "out").unwrap().data {
                Data::Floats { values, .. } => values,
                Data::Words(_) => panic!("words"),
            }
        };
        let want = bits(&node(ExpertShare::whole(COUNT)));
        for world in DEGREES {
            let nodes: Vec<Vec<f32>> =
                (0..world).map(|rank| node(ExpertShare::of_rank(COUNT, rank, world).unwrap())).collect();
            let sum = |i: usize| {
                let node: [f32; 8] = std::array::from_fn(|rank| nodes.get(rank).map_or(-0.0, |n| n[i]));
                match world {
                    2 => tree_of_ranks::<2>([node[0], node[1]]),
                    4 => tree_of_ranks::<4>([node[0], node[1], node[2], node[3]]),
                    _ => tree_of_ranks::<8>(node),
                }
            };
            let got: Vec<u32> = (0..tokens * n).map(|i| sum(i).to_bits()).collect();
            assert_eq!(got, want, "{tokens} tokens, {world} ranks, {dtype}");
        }
    }
}

/// The law of F32 outputs: it sees what models in 16 bits round away.
fn nodes_of_ranks_are_the_sums_of_one() {
    nodes_are_sums(&cpu());
    experts_add_up(&cpu(), Float::F32);
    experts_add_up(&cpu(), Float::Bf16);
}

fn nodes_are_sums<B: Backend>(backend: &Arc<B>) {
    nodes_are_sums_of(backend, &|_| true);
}

/// The same of matmuls whose leaves have grains that `takes` says.
fn nodes_are_sums_of<B: Backend>(backend: &Arc<B>, takes: &dyn Fn(usize) -> bool) {
    let mut dice = Dice::new(11);
    let formats = ["f32", "f16", "bf16", "int8:32", "int4a:32", "Q8_0", "Q4_0", "w8a8"];
    let (mut folds, mut rounded) = (0, 0);
    for format in formats.map(|name| name.parse::<WeightFormat>().unwrap()) {
        for (rows, n, k, grain, group) in [
            (1, 33, 640, 64, 1),
            (3, 17, 1088, 64, 1),
            (19, 40, 2048, 32, 1),
            (2, 16, 96, 32, 1),
            // 9 heads on 3 of keys and values, 40 on 10.
            (5, 24, 9 * 64, 64, 3),
            (2, 20, 40 * 32, 32, 4),
            (70, 40, 13 * 64, 64, 1),
        ] {
            if !takes(grain) {
                continue;
            }
            let (whole, degrees) = whole_and_nodes(backend, &mut dice, format, (rows, n, k), (grain, group));
            for (world, nodes) in DEGREES.into_iter().zip(&degrees) {
                for (i, want) in whole.iter().enumerate() {
                    let node: [f32; 8] =
                        std::array::from_fn(|rank| nodes[rank].get(i).copied().unwrap_or(-0.0));
                    let got = match world {
                        2 => tree_of_ranks::<2>([node[0], node[1]]),
                        4 => tree_of_ranks::<4>([node[0], node[1], node[2], node[3]]),
                        _ => tree_of_ranks::<8>(node),
                    };
                    assert_eq!(
                        got.to_bits(),
                        want.to_bits(),
                        "{format} {rows} x {n} x {k}, {world} ranks, sum {i}"
                    );
                    // Planted: added first to last, and rounded before they are added.
                    folds += usize::from(node.iter().fold(-0.0, |sum: f32, node| sum + node) != *want);
                    let halves = node.map(|node| half::bf16::from_f32(node).to_f32());
                    rounded += usize::from(tree_of_ranks::<8>(halves) != *want);
                }
            }
        }
    }
    assert!(folds > 1000 && rounded > 1000, "{folds} sums by fold, {rounded} of rounded nodes differ");
}

const ON_DEVICES: [&str; 6] = ["llama_gqa_llama3", "gpt2", "qwen2_moe", "falcon_7b", "bert", "bloom"];

/// The same on devices, whose ranks meet in host memory: kernels that take a rank's part, steps that cannot
/// be captured. In mode `Reference`; tensor cores add leaves in an order of their own.
fn devices_give_the_bits_of_one_rank_on_cuda() {
    let goldens = ON_DEVICES.map(folder);
    let bf16 = Types { weights: Some(Float::Bf16), ..Float::Bf16.into() };
    for name in cuda_names() {
        let gpu = cuda(&name, Mode::Reference).unwrap();
        nodes_are_sums(&gpu);
        experts_add_up(&gpu, Float::Bf16);
        let held = law(&gpu, &goldens, Float::F32.into(), &[2, 8], &config());
        let in_16_bits = law(&gpu, &goldens[..1], bf16, &[4], &config());
        let parts = Types { ep: Some(1), ..bf16 };
        assert_eq!(law(&gpu, &goldens[2..3], parts, &[2, 8], &config()), 2);
        assert_eq!(law(&gpu, &goldens[2..3], Types { ep: Some(2), ..bf16 }, &[8], &config()), 1);
        println!("{name}: {} models by degree", held + in_16_bits);
        assert!(held >= 8 && in_16_bits == 1, "{held}");
        // Tensor cores take whole units of columns, in which leaves of these models do not begin: there one
        // rank has an order of its own. Where they do, ranks have its bits.
        let gpu = cuda(&name, Mode::Invariant).unwrap();
        nodes_are_sums_of(&gpu, &|grain| grain % LEAF_UNIT == 0);
        assert_eq!(law(&gpu, &goldens[..3], Float::F32.into(), &[4], &config()), 3);
        let [two, others @ ..] =
            DEGREES.map(|tp| run(&gpu, &goldens[0], Types { tp, ..bf16 }, config()).unwrap());
        assert!(others.iter().all(|other| *other == two));
    }
}

fn devices_give_the_bits_of_one_rank_on_wgpu() {
    let goldens = ON_DEVICES.map(folder);
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        nodes_are_sums(&gpu);
        experts_add_up(&gpu, Float::F32);
        let held = law(&gpu, &goldens, Float::F32.into(), &[2, 8], &config());
        let parts = Types { ep: Some(1), ..Float::F32.into() };
        assert_eq!(law(&gpu, &goldens[2..3], parts, &[2, 8], &config()), 2);
        assert_eq!(law(&gpu, &goldens[2..3], Types { ep: Some(4), ..parts }, &[8], &config()), 1);
        println!("{name}: {held} models by degree");
        assert!(held >= 8, "{held}");
    }
}

/// What a plan says of a group: ranks together have the model and what is replicated, with reasons; a
/// parallel block exchanges once.
fn a_plan_says_what_each_rank_has() {
    let plan = |name: &str, world: usize| {
        let files = checkpoint::open(&folder(name), Access::default()).unwrap();
        let options = LoadOptions { world, ..LoadOptions::default() };
        GroupPlan::new(&files, &Registry::default(), options, Float::F32, Float::F32).unwrap()
    };
    for name in ["llama", "qwen2_moe", "gpt2", "bert"] {
        let one = plan(name, 1);
        assert!(one.replicated.is_empty(), "{name}: {one}");
        for world in DEGREES {
            let group = plan(name, world);
            let total =
                |of: &dyn Fn(&RankPlan) -> usize, plan: &GroupPlan| plan.ranks.iter().map(of).sum::<usize>();
            let replicated: usize = group.replicated.iter().map(|one| one.bytes).sum();
            assert_eq!(
                total(&|r| r.bytes, &group),
                total(&|r| r.bytes, &one) + replicated,
                "{name}: {group}"
            );
            assert_eq!(total(&|r| r.heads, &group), total(&|r| r.heads, &one), "{name}: {group}");
            assert_eq!(total(&|r| r.columns, &group), total(&|r| r.columns, &one), "{name}: {group}");
            assert!(group.replicated.iter().any(|one| one.why.contains("looks up whole rows")), "{group}");
        }
    }
    let experts: Vec<usize> = plan("qwen2_moe", 4).ranks.iter().map(|rank| rank.experts).collect();
    assert!(experts.iter().sum::<usize>() > 4 && experts.iter().all(|n| *n > 0), "{experts:?}");
    // One exchange a block where both parts add to the same sum, two elsewhere; one for the logits.
    for (name, a_block) in [("gptj", 1), ("falcon_7b", 1), ("llama", 2)] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
        let files = checkpoint::open(&dir, Access::default()).unwrap();
        let layers = describe(&files, &Registry::default()).unwrap().0.blocks.len();
        assert_eq!(plan(name, 2).exchanges, a_block * layers + 1, "{name}");
    }
}

/// Keeps every order for somebody else.
struct Record(Sender<StepOrder>);

impl Followers for Record {
    fn start(&mut self, _: &EngineConfig) -> Result<()> {
        Ok(())
    }
    fn order(&mut self, order: &StepOrder) -> Result<()> {
        self.0.send(order.clone()).map_err(|_| Error::internal("no receiver for orders"))
    }
    fn fail(&mut self, _: &str) {}
}

/// Orders are plain data: another thread's runner, which knows no request, gives what the engine's gave.
fn orders_carried_out_by_another_runner_give_the_same() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/qwen2_moe");
    for (ahead, graphs) in [(0, true), (1, true), (1, false)] {
        let config = EngineConfig { steps_ahead: Some(ahead), graphs, ..config() };
        let dir = dir.clone();
        let model = move |backend: &Arc<Cpu>| {
            let files = checkpoint::open(&dir, Access::default()).unwrap();
            inject(backend, &files, &Registry::default(), 32, LoadOptions::default(), &mut |_, _| {}).unwrap()
        };
        let (backend, (keep, orders)) = (cpu(), channel());
        let record = Box::new(Record(keep));
        let mut engine =
            Engine::of_group(backend.clone(), model(&backend), config, Box::new(Solo), record).unwrap();
        let (vocab, checked) = (engine.model().spec.vocab, engine.config().clone());
        let ids: Vec<u64> = requests(vocab).into_iter().map(|r| engine.put(r).unwrap()).collect();
        let (mut out, mut tokens) = (Vec::new(), Vec::new());
        while !engine.is_idle() {
            engine.step(&mut out).unwrap();
            tokens.extend(out.iter().flat_map(|output| output.token));
        }
        let logits: Vec<u32> =
            ids.iter().flat_map(|id| bits(&engine.take_kept(*id).unwrap_or_default().logits)).collect();
        drop(engine);
        let (sampled, rows) = thread::spawn(move || {
            let backend = cpu();
            let model = model(&backend);
            let mut runner = Runner::new(backend, model, &checked, Box::new(Solo)).unwrap();
            let (mut sampled, mut rows, mut result) = (Vec::new(), Vec::new(), StepResult::default());
            for order in orders {
                let launched = runner.launch(&order).unwrap();
                block_on(runner.collect(launched, &mut result)).unwrap();
                sampled.append(&mut result.tokens);
                rows.extend(bits(&result.logits));
            }
            (sampled, rows)
        })
        .join()
        .unwrap();
        // In the same order; padding of buckets samples, too.
        let mut others = sampled.into_iter();
        let missing = tokens.iter().position(|token| !others.any(|other| other == *token));
        assert_eq!((missing, tokens.len()), (None, 24), "{ahead} ahead: a token of the engine alone");
        let held =
            logits.chunks(vocab).filter(|row| rows.windows(vocab).step_by(vocab).any(|other| other == *row));
        assert_eq!((held.count() * vocab, logits.is_empty()), (logits.len(), false), "{ahead} ahead");
    }
}

/// A rank that cannot load ends all, with its reason.
fn what_a_rank_cannot_load_ends_the_group() {
    let config = config();
    let load = |rank: Rank| match rank.index {
        2 => Err(Error::internal("no weights here")),
        _ => Err(Error::config("rank", rank.index, "2")),
    };
    let error = engraft_ranks::spawn::<Cpu>(4, config, Arc::new(load)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`rank` is 0"), "{error}");
    let error = engraft_ranks::spawn::<Cpu>(3, EngineConfig::default(), Arc::new(load)).map(|_| ());
    assert!(error.unwrap_err().to_string().contains("1, 2, 4 or 8"));
}
