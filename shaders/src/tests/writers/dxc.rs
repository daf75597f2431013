//! HLSL as DXC takes it, by the arguments that wgpu 30 gives, and what its optimisation leaves of the guards.
//!
//! DXC is a library: `ENGRAFT_DXC` has its path, else the loader looks for `libdxcompiler.so` (1.8 or newer).
//! `ENGRAFT_REQUIRE=dxc`, which the wgpu lane sets, makes its absence a failure; elsewhere it is said. One of
//! 64 variants is compiled, by `ENGRAFT_SEED`, for the oldest and the newest devices that it is for; under
//! `ENGRAFT_FULL` all are for the newest, and one of eight for the oldest, whose text differs little.

use super::com::{Compiler, Dxc};
use super::dxil::Program;
use super::*;
use crate::{Attention, Elem, Limit, Norm, Packing, Reduce};
use naga::back::hlsl::ShaderModel;
use std::ffi::OsString;

/// Of so many variants one is compiled, unless all are.
const COMPILED: usize = 64;
/// Of so many variants one is compiled for the oldest devices, where all are for the newest.
const OLDEST: usize = 8;

/// What DXC refuses, and the backend asks of no DX12 device.
struct Refusal {
    is_of: fn(&Variant, ShaderModel) -> bool,
    /// In DXC's words.
    says: &'static str,
}

const REFUSED: [Refusal; 1] = [
    // naga writes `dot4add_i8packed(a, b, 0)`, and DXC takes its type from the literal, which has 64 bits.
    Refusal {
        is_of: |variant, model| {
            variant.kernel.of_bytes() && variant.dialect.dot && model >= ShaderModel::V6_4
        },
        says: "@dx.op.dot4AddPacked.i64",
    },
];

/// The library, where there is one.
fn library() -> Option<Dxc> {
    let named = std::env::var_os("ENGRAFT_DXC");
    let name = named.clone().unwrap_or_else(|| OsString::from("libdxcompiler.so"));
    match Dxc::load(&name) {
        Ok(dxc) => Some(dxc),
        Err(why) => {
            assert!(named.is_none() && !required("dxc"), "DXC is required: {why}");
            let said = format!("HLSL was written but not compiled: ENGRAFT_DXC is not set, and {why}");
            writeln!(std::io::stderr(), "{said}").unwrap();
            None
        }
    }
}

/// The variants that a run compiles, for the devices that it compiles them for.
fn chosen(full: bool) -> Vec<(Kernel, Dialect, ShaderModel)> {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0usize);
    let all = Kernel::all(COLUMNS).into_iter().flat_map(|k| dialects(&k).into_iter().map(move |d| (k, d)));
    let mut chosen = Vec::new();
    for (at, (kernel, dialect)) in all.enumerate() {
        let one_of = |count: usize| at % count == seed % count;
        if one_of(if full { OLDEST } else { COMPILED }) {
            let oldest = if dialect.f16 { ShaderModel::V6_2 } else { ShaderModel::V6_0 };
            chosen.push((kernel, dialect, oldest));
        }
        if full || one_of(COMPILED) {
            chosen.push((kernel, dialect, ShaderModel::V6_6));
        }
    }
    chosen
}

fn compiled(compiler: &Compiler<'_>, variant: &Variant, model: ShaderModel) -> Result<Vec<u8>, String> {
    let (text, entry) = variant.hlsl(model)?;
    let profile = format!("cs_{}", model.to_str());
    let mut arguments = vec!["-E", &entry, "-T", &profile, "-HV", "2018", "-no-warnings", "-Ges"];
    if variant.dialect.f16 {
        arguments.push("-enable-16bit-types");
    }
    compiler.compile(&text, &arguments)
}

/// Whether products and sums of a kernel must keep their roundings: what is measured in multiply-adds need
/// not.
fn is_strict(kernel: Kernel) -> bool {
    kernel != Kernel::Limit(Limit::Multiply)
}

/// Compiles a variant for a model, and looks for guards that are gone; expected refusals are no error, and
/// to be taken in spite of one is. The program's text comes back, where there is a program.
fn checked(compiler: &Compiler<'_>, variant: &Variant, model: ShaderModel) -> Result<Option<String>, String> {
    let name = format!("{} ({:?}), {model:?}", variant.kernel.label(), variant.dialect);
    let expected = REFUSED.iter().find(|refusal| (refusal.is_of)(variant, model));
    match (compiled(compiler, variant, model), expected) {
        (Err(why), Some(refusal)) if why.contains(refusal.says) => Ok(None),
        (Err(why), _) => Err(format!("{name}: {why}")),
        (Ok(_), Some(refusal)) => Err(format!("{name}: taken, though expected to fail by {}", refusal.says)),
        (Ok(object), None) => {
            let text = compiler.disassemble(&object).map_err(|why| format!("{name}: {why}"))?;
            let faults = Program::read(&text).faults();
            match faults.first().filter(|_| is_strict(variant.kernel)) {
                Some(fault) => Err(format!("{name}: {} faults, such as {fault}", faults.len())),
                None => Ok(Some(text)),
            }
        }
    }
}

/// What was done by one thread or by all.
#[derive(Debug, Default)]
struct Sum {
    programs: usize,
    expected: usize,
    chained: usize,
    time: Duration,
    slowest: (Duration, String),
    refused: Vec<String>,
}

impl Sum {
    fn take(&mut self, compiler: &Compiler<'_>, variant: &Variant, model: ShaderModel) {
        let start = Instant::now();
        let checked = checked(compiler, variant, model);
        let took = start.elapsed();
        self.time += took;
        if took > self.slowest.0 {
            self.slowest = (took, format!("{} {model:?}", variant.kernel.label()));
        }
        match checked {
            Ok(Some(text)) => {
                self.programs += 1;
                self.chained += usize::from(Program::read(&text).chained() > 0);
            }
            Ok(None) => self.expected += 1,
            Err(why) => self.refused.push(why),
        }
    }

    fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.expected += other.expected;
        self.chained += other.chained;
        self.time += other.time;
        if other.slowest.0 > self.slowest.0 {
            self.slowest = other.slowest;
        }
        self.refused.extend(other.refused);
    }
}

#[test]
fn dxc_takes_the_variants() {
    let Some(dxc) = library() else { return };
    let all = chosen(std::env::var_os("ENGRAFT_FULL").is_some());
    let (next, sums) = (AtomicUsize::new(0), Mutex::new(Sum::default()));
    let work = || {
        let (compiler, mut sum) = (dxc.compiler().unwrap(), Sum::default());
        while let Some((kernel, dialect, model)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            sum.take(&compiler, &Variant::read(*kernel, *dialect), *model);
        }
        sums.lock().unwrap().add(sum);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let sum = sums.into_inner().unwrap();
    let (major, minor) = dxc.compiler().unwrap().version().unwrap();
    println!(
        "DXC {major}.{minor}: {} programs in {:.1} s, {} with sums in chains; {} refused as expected; the slowest \
         took {:.1} s: {}",
        sum.programs,
        sum.time.as_secs_f64(),
        sum.chained,
        sum.expected,
        sum.slowest.0.as_secs_f64(),
        sum.slowest.1,
    );
    let few = &sum.refused[..sum.refused.len().min(5)];
    assert!(sum.refused.is_empty(), "{} are refused, such as {}", sum.refused.len(), few.join("\n"));
    assert!(sum.programs + sum.expected == all.len() && sum.programs > all.len() / 2, "{sum:?}");
}

/// Of every class that sums: products that reach a sum are guarded by the parameter that is zero, whatever
/// DXC has made of the text.
#[test]
fn guards_outlive_dxc() {
    let Some(dxc) = library() else { return };
    let compiler = dxc.compiler().unwrap();
    let (x, out) = (Elem::F32, Elem::F32);
    let linear =
        |weight, rows, vector| Kernel::Linear { weight, x, out, rows, gate: true, vector, act: true };
    let lanes = |subgroups| {
        let weight = Packing::Q4K;
        Kernel::LinearLanes { weight, x, out, rows: 4, gate: false, act: false, subgroups }
    };
    let attend = |dense, distances, capped, subgroups| {
        Kernel::Attention(Attention { dense, columns: 2, capped, subgroups, distances }, x, x.into())
    };
    let mut all = vec![
        linear(Packing::F32, 1, false),
        linear(Packing::F32, 8, true),
        linear(Packing::Q6K, 4, true),
        lanes(false),
        lanes(true),
        Kernel::Experts { weight: Packing::Q8_0, x, out, rows: 4, vector: true, grouped: true },
        attend(false, false, true, true),
        attend(true, false, false, false),
        attend(true, true, false, false),
        Kernel::AttentionTile(2, false, x, x.into()),
        Kernel::Probe,
    ];
    all.extend(Reduce::ALL.map(|reduce| Kernel::Norm(Norm::Alone, x, reduce)));
    for kernel in all {
        let variant = Variant::read(kernel, dialects(&kernel)[0]);
        let text = checked(&compiler, &variant, ShaderModel::V6_6).unwrap().unwrap();
        let program = Program::read(&text);
        println!(
            "{}: {} guards; {} sums take another sum as it is",
            kernel.label(),
            program.guards(),
            program.chained()
        );
        assert!(program.guards() >= 8, "{} has {} guards", kernel.label(), program.guards());
        assert!(text.contains(" fmul fast ") && text.contains(" fadd fast "), "{}", kernel.label());
    }
}
