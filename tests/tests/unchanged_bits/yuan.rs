//! Yuan 2.0 has no golden: a checkpoint of random weights against its published description, written down
//! here in f64, token by token and without a cache; then the laws, since its blocks keep more of every
//! position than keys and values.

use crate::described::{Matrix, Tensors, attend, close, matvec, rotated, widened, write};
use crate::whole;
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::dice::Dice;
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Kept, Layers, Output, Pick, Request, Want};
use engraft_core::kv::HostPages;
use engraft_core::mem::Float;
use engraft_core::numerics::{Madd, Mode};
use engraft_cpu::{Cpu, CpuConfig};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    random_weights_give_what_the_description_gives,
    nothing_depends_on_batch_mates_chunks_or_pages,
    hits_forks_and_a_store_take_what_filters_keep,
    a_saved_request_takes_what_filters_keep,
    a_preemption_before_any_step_changes_no_bit,
    chunks_pages_and_recorded_steps_change_nothing,
];
pub const ON_CUDA: &[Named] = &named![
    hits_forks_and_a_store_take_what_filters_keep_on_cuda,
    chunks_pages_and_recorded_steps_change_nothing_on_cuda
];
pub const ON_WGPU: &[Named] = &named![
    hits_forks_and_a_store_take_what_filters_keep_on_wgpu,
    chunks_pages_and_recorded_steps_change_nothing_on_wgpu
];

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const WIDTH: usize = HIDDEN / HEADS;
const INNER: usize = 48;
const LAYERS: usize = 2;
const VOCAB: usize = 41;
const EPS: f64 = 1e-3;
/// Of the filter's norm, which no configuration names.
const FILTER_EPS: f64 = 1e-6;

fn tensors() -> Tensors {
    let mut dice = Dice::new(21);
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize], middle: f32, scale: f32| {
        let values = (0..shape.iter().product()).map(|_| middle + scale * dice.unit()).collect();
        all.insert(name, (shape.to_vec(), values));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], 0.0, 1.0);
    for layer in 0..LAYERS {
        let mut of = |name: &str, shape: &[usize], middle: f32, scale: f32| {
            add(format!("model.layers.{layer}.{name}"), shape, middle, scale);
        };
        of("input_layernorm.weight", &[HIDDEN], 1.0, 0.2);
        of("self_attn.lf_gate.conv1.weight", &[HIDDEN / 2, HIDDEN, 2, 1], 0.0, 0.2);
        of("self_attn.lf_gate.conv1.bias", &[HIDDEN / 2], 0.0, 0.7);
        of("self_attn.lf_gate.conv2.weight", &[HIDDEN, HIDDEN / 2, 2, 1], 0.0, 0.3);
        of("self_attn.lf_gate.conv2.bias", &[HIDDEN], 0.0, 0.3);
        of("self_attn.lf_gate.output_layernorm.weight", &[HIDDEN], 1.0, 0.2);
        for part in ["q", "k", "v", "o"] {
            of(&format!("self_attn.{part}_proj.weight"), &[HIDDEN, HIDDEN], 0.0, 0.3);
        }
        of("post_attention_layernorm.weight", &[HIDDEN], 1.0, 0.2);
        of("mlp.up_proj.weight", &[INNER, HIDDEN], 0.0, 0.3);
        of("mlp.gate_proj.weight", &[INNER, HIDDEN], 0.0, 0.3);
        of("mlp.down_proj.weight", &[HIDDEN, INNER], 0.0, 0.3);
    }
    add("model.norm.weight".into(), &[HIDDEN], 1.0, 0.2);
    add("lm_head.weight".into(), &[VOCAB, HIDDEN], 0.0, 0.3);
    all
}

/// The layout that later releases are published in: queries' and keys' rows in one tensor.
fn one_tensor(mut all: Tensors) -> Tensors {
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}.weight");
        let (mut q, k) = (all.remove(&name("q_proj")).unwrap(), all.remove(&name("k_proj")).unwrap());
        q.1.extend(k.1);
        all.insert(name("get_query_key"), (vec![2 * HIDDEN, HIDDEN], q.1));
    }
    all
}

fn config() -> Value {
    json!({
        "model_type": "yuan", "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
        "intermediate_size": INNER, "vocab_size": VOCAB, "rms_norm_eps": EPS, "max_position_embeddings": 64,
        "hidden_act": "silu", "tie_word_embeddings": false, "use_shareqk": false,
    })
}

/// RMSNorm.
fn rms(w: &[f32], eps: f64, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(w).map(|(v, w)| v / (mean + eps).sqrt() * f64::from(*w)).collect()
}

/// A convolution over two steps: `weight[o][i][0]` meets the step before, which is zero before the first.
fn convolve(weight: &[f32], bias: &[f32], x: &Matrix) -> Matrix {
    let inputs = x[0].len();
    let at = |t: usize, o: usize| {
        let mut sum = f64::from(bias[o]);
        for i in 0..inputs {
            let tap = |tap: usize| f64::from(weight[(o * inputs + i) * 2 + tap]);
            sum += tap(1) * x[t][i] + if t > 0 { tap(0) * x[t - 1][i] } else { 0.0 };
        }
        sum
    };
    (0..x.len()).map(|t| (0..bias.len()).map(|o| at(t, o)).collect()).collect()
}

/// Logits of every token.
fn logits(all: &Tensors, ids: &[u32]) -> Matrix {
    let get = |name: &str| &all[name].1[..];
    let table = get("model.embed_tokens.weight");
    let mut x: Matrix = ids.iter().map(|i| widened(&table[*i as usize * HIDDEN..][..HIDDEN])).collect();
    for layer in 0..LAYERS {
        let get = |name: &str| get(&format!("model.layers.{layer}.{name}"));
        let n: Matrix = x.iter().map(|x| rms(get("input_layernorm.weight"), EPS, x)).collect();
        let gate = |name: &str| get(&format!("self_attn.lf_gate.{name}"));
        let y = convolve(gate("conv1.weight"), gate("conv1.bias"), &n);
        let c = convolve(gate("conv2.weight"), gate("conv2.bias"), &y);
        let sum = |c: &[f64], n: &[f64]| c.iter().zip(n).map(|(c, n)| c + n).collect::<Vec<f64>>();
        let w = gate("output_layernorm.weight");
        let f: Matrix = c.iter().zip(&n).map(|(c, n)| rms(w, FILTER_EPS, &sum(c, n))).collect();
        // Rows of queries and keys one after the other; of them every head takes twice its width.
        let rows = [get("self_attn.q_proj.weight"), get("self_attn.k_proj.weight")].concat();
        let qk: Matrix = f.iter().map(|f| matvec(&rows, f)).collect();
        let v: Matrix = n.iter().map(|n| matvec(get("self_attn.v_proj.weight"), n)).collect();
        let mut attended = vec![Vec::new(); ids.len()];
        for h in 0..HEADS {
            let part = |from: usize| {
                let rotate = |(t, row): (usize, &Vec<f64>)| rotated(&row[from..from + WIDTH], t, WIDTH);
                qk.iter().enumerate().map(rotate).collect::<Matrix>()
            };
            let (q, k) = (part(2 * WIDTH * h), part(2 * WIDTH * h + WIDTH));
            let v: Matrix = v.iter().map(|v| v[WIDTH * h..WIDTH * (h + 1)].to_vec()).collect();
            attended.iter_mut().enumerate().for_each(|(t, a)| a.extend(attend(&q, &k, &v, t)));
        }
        for (x, a) in x.iter_mut().zip(&attended) {
            let out = matvec(get("self_attn.o_proj.weight"), a);
            x.iter_mut().zip(out).for_each(|(x, o)| *x += o);
            let m = rms(get("post_attention_layernorm.weight"), EPS, x);
            let up = matvec(get("mlp.up_proj.weight"), &m);
            let gate = matvec(get("mlp.gate_proj.weight"), &m);
            // The activation is on the branch that is called up.
            let inner: Vec<f64> = up.iter().zip(gate).map(|(u, g)| g * u / (1.0 + (-u).exp())).collect();
            let down = matvec(get("mlp.down_proj.weight"), &inner);
            x.iter_mut().zip(down).for_each(|(x, d)| *x += d);
        }
    }
    let logits = |x: &Vec<f64>| matvec(get("lm_head.weight"), &rms(get("model.norm.weight"), EPS, x));
    x.iter().map(logits).collect()
}

fn cpu(madd: Madd) -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads: 2, madd, isa: None }).unwrap()
}

fn usual() -> EngineConfig {
    EngineConfig { max_context: 48, logit_rows: Some(usize::MAX), ..EngineConfig::default() }
}

fn prompts() -> Vec<Vec<u32>> {
    let prompt = |(p, n): (usize, &usize)| (0..*n).map(|i| ((p * 31 + i) * 7919 % VOCAB) as u32).collect();
    [1, 2, 3, 9, 17].iter().enumerate().map(prompt).collect()
}

fn random_weights_give_what_the_description_gives() {
    let split = tensors();
    for (variant, tensors) in [("q and k", split.clone()), ("one tensor", one_tensor(split.clone()))] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &config(), &tensors);
        let mut engine = whole::open(&cpu(Madd::Fused), dir.path(), usual());
        let want = ForwardWant { logits: Pick::All, hidden: Pick::None };
        let got = engine.forward(Batch::Ragged(&prompts()), &want).unwrap();
        for (prompt, got) in prompts().iter().zip(got) {
            let want = logits(&split, prompt).concat();
            close(&format!("{variant}, {} tokens", prompt.len()), &got.logits, &want);
        }
    }
}

type Run = Vec<(Vec<u32>, Kept)>;

/// All prompts, in the order `order` and `at_once`, results in the order of the prompts.
fn run(dir: &Path, config: EngineConfig, order: &[usize], at_once: bool) -> Run {
    let mut engine: Engine<Cpu> = whole::open(&cpu(Madd::Fused), dir, config);
    let (mut ids, mut sampled) = (BTreeMap::new(), BTreeMap::new());
    for p in order {
        let want = Want { logits: true, hidden: Layers::All, logprobs: false };
        let prompt = prompts()[*p].clone();
        let request = Request { prompt, max_new_tokens: 8, want, ..Request::default() };
        ids.insert(*p, engine.put(request).unwrap());
        if !at_once {
            sampled.extend(engine.run().unwrap());
        }
    }
    sampled.extend(engine.run().unwrap());
    ids.values().map(|id| (sampled[id].clone(), engine.take_kept(*id).unwrap())).collect()
}

fn nothing_depends_on_batch_mates_chunks_or_pages() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let (order, other) = ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1]);
    let want = run(dir.path(), usual(), &order, false);
    let mut cases = vec![("a batch".to_string(), usual())];
    for chunk in [1, 3, 7] {
        let chunked = EngineConfig { max_step_tokens: chunk, max_seqs: 1, ..usual() };
        cases.push((format!("chunks of {chunk}"), chunked));
    }
    cases.push(("ragged chunks".into(), EngineConfig { max_step_tokens: 7, max_seqs: 3, ..usual() }));
    for page_size in [1, 16, 64] {
        let paged = EngineConfig { page_size, page_seed: Some(11), ..usual() };
        cases.push((format!("shuffled pages of {page_size}"), paged));
    }
    for (name, config) in cases {
        for order in [order, other] {
            let got = run(dir.path(), config.clone(), &order, true);
            for (p, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.0, want.0, "{name}: tokens of prompt {p}");
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(!want.1.logits.is_empty() && want.1.hidden.len() == LAYERS + 1);
                assert!(bits(&got.1.logits) == bits(&want.1.logits), "{name}: logits of prompt {p} differ");
                assert!(got.1.hidden == want.1.hidden, "{name}: hidden states of prompt {p} differ");
            }
        }
    }
}

/// What a filter keeps of a position goes with its page: to those whose prompts begin alike, so many tokens;
/// to forks behind so many tokens; to host memory and back.
fn pages_take_what_filters_keep<B: Backend>(
    backend: &Arc<B>,
    dir: &Path,
    shared: impl Iterator<Item = usize>,
    forked: impl Iterator<Item = usize>,
) {
    let sizes = |prefix_cache| EngineConfig {
        page_size: 4,
        page_seed: Some(5),
        steps_ahead: Some(0),
        prefix_cache,
        ..usual()
    };
    let request = || Request { prompt: prompts()[4].clone(), max_new_tokens: 8, ..Request::default() };
    let run = |engine: &mut Engine<B>| {
        let id = engine.put(request()).unwrap();
        let sampled = engine.run().unwrap().remove(&id).unwrap();
        assert_eq!(sampled.len(), 8);
        sampled
    };
    let want = run(&mut whole::open(backend, dir, sizes(false)));
    for alike in shared {
        let mut engine = whole::open(backend, dir, sizes(true));
        let mut other = request();
        other.prompt[alike..].iter_mut().for_each(|token| *token = (*token + 1) % VOCAB as u32);
        engine.put(other).unwrap();
        engine.run().unwrap();
        assert_eq!(run(&mut engine), want, "{alike} tokens are alike");
        assert_eq!(engine.prefix_stats().hit, (alike.min(16) / 4 * 4) as u64);
    }
    // What leaves for host memory takes what the filters keep along.
    let small = EngineConfig { kv_pages: Some(8), ..sizes(true) };
    let mut engine = whole::open(backend, dir, small);
    engine.set_page_store(HostPages::new(1 << 20)).unwrap();
    for other in 0..3 {
        let mut request = request();
        request.prompt.iter_mut().for_each(|token| *token = (*token + other) % VOCAB as u32);
        engine.put(request).unwrap();
        engine.run().unwrap();
        assert_eq!(run(&mut engine), want, "round {other}");
    }
    assert!(engine.prefix_stats().restored >= 4, "{:?}", engine.prefix_stats());
    for stop in forked {
        let mut engine = whole::open(backend, dir, sizes(false));
        let (id, mut out) = (engine.put(request()).unwrap(), Vec::new());
        (0..stop).for_each(|_| engine.step(&mut out).unwrap());
        let fork = engine.fork(id, request().sampling, 0).unwrap();
        assert!(engine.cancel(id).unwrap());
        assert_eq!(engine.run().unwrap()[&fork], want[stop..], "forked behind {stop} tokens");
    }
}

fn hits_forks_and_a_store_take_what_filters_keep() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    pages_take_what_filters_keep(&cpu(Madd::Fused), dir.path(), 0..=17, 1..7);
}

/// What devices are asked for: tokens that are alike, and tokens behind which a request is forked.
const ON_DEVICES: ([usize; 3], [usize; 2]) = ([6, 12, 17], [2, 5]);

fn hits_forks_and_a_store_take_what_filters_keep_on_cuda() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let (shared, forked) = ON_DEVICES;
    for name in cuda_names() {
        for mode in [Mode::Reference, Mode::Invariant] {
            let gpu = cuda(&name, mode).unwrap();
            pages_take_what_filters_keep(&gpu, dir.path(), shared.into_iter(), forked.into_iter());
        }
    }
}

fn hits_forks_and_a_store_take_what_filters_keep_on_wgpu() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let (shared, forked) = ON_DEVICES;
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        pages_take_what_filters_keep(&gpu, dir.path(), shared.into_iter(), forked.into_iter());
    }
}

/// Steps until so many tokens of a request are reported, or nothing is left to do; the tokens.
fn steps(engine: &mut Engine<Cpu>, id: u64, count: usize) -> Vec<u32> {
    let (mut out, mut tokens): (Vec<Output>, Vec<u32>) = (Vec::new(), Vec::new());
    while tokens.len() < count && !engine.is_idle() {
        engine.step(&mut out).unwrap();
        tokens.extend(out.iter().filter(|o| o.id == id).filter_map(|o| o.token));
    }
    tokens
}

/// Keys and values of a running request, layer by layer.
fn caches(engine: &mut Engine<Cpu>, id: u64) -> Vec<[Vec<f32>; 2]> {
    (0..LAYERS).map(|layer| engine.cached(id, layer).unwrap()).collect()
}

/// A request that is saved takes what filters keep along to pages of another size: queries and keys behind
/// are filtered with what the position before had. Behind any number of tokens.
fn a_saved_request_takes_what_filters_keep() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let open = |page_size: usize| {
        let (page_seed, steps_ahead) = (Some(page_size as u64), Some(0));
        let sizes = EngineConfig { page_size, page_seed, steps_ahead, max_step_tokens: 9, ..usual() };
        whole::open(&cpu(Madd::Fused), dir.path(), sizes)
    };
    let (prompt, new, other_size) = (prompts()[4].clone(), 8usize, 3usize);
    let request = || Request { prompt: prompt.clone(), max_new_tokens: new, ..Request::default() };
    let mut alone = open(5);
    let id = alone.put(request()).unwrap();
    // Its cache is read while it runs.
    let mut want = steps(&mut alone, id, new - 1);
    let keys = caches(&mut alone, id);
    want.extend(steps(&mut alone, id, 1));
    for known in 0..new - 1 {
        let (mut from, mut to) = (open(5), open(other_size));
        let id = from.put(request()).unwrap();
        let mut tokens = steps(&mut from, id, known);
        let saved = from.save(id).unwrap();
        tokens.extend(steps(&mut from, id, new - known));
        assert_eq!(tokens, want, "saved behind {known} tokens: it goes on here all the same");
        let id = to.restore(&saved).unwrap();
        let mut rest = steps(&mut to, id, new - 1 - known);
        let same = caches(&mut to, id) == keys;
        assert!(same, "restored behind {known} tokens: keys and values differ");
        rest.extend(steps(&mut to, id, 1));
        assert_eq!(rest, want[known..], "restored behind {known} tokens");
        // Positions of whole pages came with the bytes; nothing is computed before the first step.
        let saved = if known == 0 { 0 } else { prompt.len() + known - 1 };
        assert_eq!(to.prefix_stats().hit as usize, saved / other_size * other_size, "{known} tokens");
    }
}

/// A request that gives its pages up before any of its steps finds what filters keep in the prefix cache, or
/// computes it anew.
fn a_preemption_before_any_step_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let (never, new) = (usize::MAX, 8);
    for (ahead, prefix_cache) in [(0, true), (0, false), (1, true), (1, false)] {
        let steps_ahead = Some(ahead);
        let sizes = EngineConfig { page_size: 4, max_step_tokens: 9, steps_ahead, prefix_cache, ..usual() };
        let preempted = |at: usize| {
            let mut engine = whole::open(&cpu(Madd::Fused), dir.path(), sizes.clone());
            let want = Want { logits: true, hidden: Layers::All, logprobs: false };
            let prompt = prompts()[4].clone();
            let request = Request { prompt, max_new_tokens: new, want, ..Request::default() };
            let id = engine.put(request).unwrap();
            let (mut out, mut tokens, mut ran): (Vec<Output>, Vec<u32>, bool) =
                (Vec::new(), Vec::new(), false);
            for step in 0.. {
                if step == at {
                    ran = engine.preempt(id).unwrap();
                }
                if engine.is_idle() {
                    break;
                }
                engine.step(&mut out).unwrap();
                tokens.extend(out.iter().filter_map(|o| o.token));
            }
            let (free, all) = engine.free_pages();
            assert_eq!(free, all, "pages leak");
            (tokens, engine.take_kept(id).unwrap(), ran)
        };
        let (tokens, kept, _) = preempted(never);
        assert_eq!((tokens.len(), kept.hidden.len()), (new, LAYERS + 1));
        let mut count = 0;
        for at in 0..12 {
            let (got_tokens, got, ran) = preempted(at);
            let what = format!("{ahead} ahead, cache {prefix_cache}, preempted before step {at}");
            assert_eq!(got_tokens, tokens, "{what}: tokens");
            assert!(got == kept, "{what}: logits or hidden states differ");
            count += usize::from(ran);
        }
        // It takes two steps for its prompt, and runs before every one but the first.
        assert!(count >= new, "{ahead} ahead, cache {prefix_cache}: preempted {count} times");
    }
}

fn chunks_pages_and_recorded_steps_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let case = dir.path().to_str().unwrap();
    whole::laws(&cpu(Madd::Fused), &cpu(Madd::Fused), case, Float::Bf16);
}

/// In reference mode the CPU's bits.
fn chunks_pages_and_recorded_steps_change_nothing_on_cuda() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let case = dir.path().to_str().unwrap();
    for name in cuda_names() {
        whole::laws(&cuda(&name, Mode::Reference).unwrap(), &cpu(Madd::Fused), case, Float::F32);
        whole::laws(&cuda(&name, Mode::Invariant).unwrap(), &cpu(Madd::Fused), case, Float::Bf16);
    }
}

fn chunks_pages_and_recorded_steps_change_nothing_on_wgpu() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(), &tensors());
    let case = dir.path().to_str().unwrap();
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        whole::laws(&gpu, &cpu(Madd::Separate), case, Float::F32);
        whole::laws(&gpu, &cpu(Madd::Separate), case, Float::Bf16);
    }
}
