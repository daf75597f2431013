//! The program `ptx-vm`: run a kernel of a PTX file on the CPU, or list what the file asks for.
//!
//! ```text
//! ptx-vm list FILE
//! ptx-vm run FILE KERNEL [--grid X,Y,Z] [--block X,Y,Z] [--cluster X,Y,Z] [--shared BYTES] [--cooperative]
//!            [--schedule forward|reverse|random:SEED] [--threads N] [--show N] ARGUMENT...
//! ```
//!
//! An argument is `u32:5`, `i32:-5`, `f32:0.5`, `u64:7`, or a buffer: `empty:BYTES`, `zeros:BYTES`, `iota:N`
//! (u32 0, 1, ...),
//! `random:N` (f32 in [-1, 1)), `file:PATH`. After the run the first `--show` words of every buffer are
//! printed.

use std::process::ExitCode;
use std::sync::Arc;

use ptx_vm::{Instance, Launch, Memory, Module, Options, Schedule};

const USAGE: &str = "usage: ptx-vm list FILE\n       ptx-vm run FILE KERNEL [--grid X,Y,Z] [--block X,Y,Z] [--cluster X,Y,Z] [--shared BYTES] \
[--cooperative] [--schedule forward|reverse|random:SEED] [--threads N] [--show N] ARGUMENT...\narguments: u32:5 i32:-5 f32:0.5 u64:7 empty:BYTES \
zeros:BYTES iota:N random:N file:PATH";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list", file] => list(file),
        ["run", file, kernel, ..] => run(file, kernel, &words[3..]),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn text(file: &str) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))
}

fn list(file: &str) -> Result<(), String> {
    let ptx = text(file)?;
    let show = |e: ptx_vm::Error| format!("{file}: {e}");
    for (opcode, count) in Module::opcodes(&ptx).map_err(show)? {
        println!("{count:6}  {opcode}");
    }
    let refused = Module::refusals(&ptx).map_err(show)?;
    for error in &refused {
        println!("refused: {error}");
    }
    if !refused.is_empty() {
        return Err(format!("{} instructions are not supported", refused.len()));
    }
    let module = Module::parse(&ptx).map_err(show)?;
    for k in module.kernels() {
        let parameters: Vec<String> =
            k.parameters.iter().map(|p| format!("{} ({} bytes)", p.name, p.bytes)).collect();
        println!(
            "kernel {}: {}; {} bytes of static shared memory",
            k.name,
            parameters.join(", "),
            k.static_shared
        );
    }
    Ok(())
}

fn three(word: &str) -> Result<[u32; 3], String> {
    let mut out = [1; 3];
    let parts: Vec<&str> = word.split(',').collect();
    if parts.len() > 3 {
        return Err(format!("`{word}`: three numbers at most"));
    }
    for (to, part) in out.iter_mut().zip(parts) {
        *to = part.parse().map_err(|e| format!("`{word}`: {e}"))?;
    }
    Ok(out)
}

fn schedule(word: &str) -> Result<Schedule, String> {
    match word.split_once(':') {
        Some(("random", seed)) => Ok(Schedule::Random(seed.parse().map_err(|e| format!("`{word}`: {e}"))?)),
        None if word == "forward" => Ok(Schedule::Forward),
        None if word == "reverse" => Ok(Schedule::Reverse),
        _ => Err(format!("`{word}` is no schedule: forward, reverse, random:SEED")),
    }
}

/// The bytes of an argument, and the address and size of the buffer it points to, if it does.
type Argument = (Vec<u8>, Option<(u64, u64)>);

/// Reads an argument and makes its buffer.
fn argument(word: &str, memory: &mut Memory) -> Result<Argument, String> {
    let (kind, value) = word.split_once(':').ok_or_else(|| format!("`{word}` is no argument\n{USAGE}"))?;
    let bad = |e: &dyn std::fmt::Display| format!("`{word}`: {e}");
    let count = || {
        value
            .parse::<u64>()
            .map_err(|e| bad(&e))
            .and_then(|n| if n <= 1 << 30 { Ok(n) } else { Err(bad(&"too large")) })
    };
    let data: Option<Vec<u8>> = match kind {
        "u32" => return Ok((value.parse::<u32>().map_err(|e| bad(&e))?.to_le_bytes().to_vec(), None)),
        "i32" => return Ok((value.parse::<i32>().map_err(|e| bad(&e))?.to_le_bytes().to_vec(), None)),
        "f32" => return Ok((value.parse::<f32>().map_err(|e| bad(&e))?.to_le_bytes().to_vec(), None)),
        "u64" => return Ok((value.parse::<u64>().map_err(|e| bad(&e))?.to_le_bytes().to_vec(), None)),
        "empty" => None,
        "zeros" => Some(vec![0; count()? as usize]),
        "iota" => Some((0..count()? as u32).flat_map(u32::to_le_bytes).collect()),
        "random" => {
            let mut state = 0x9e37_79b9u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            Some((0..count()?).flat_map(|_| next().to_le_bytes()).collect())
        }
        "file" => Some(std::fs::read(value).map_err(|e| bad(&e))?),
        _ => return Err(bad(&"unknown kind")),
    };
    let bytes = match &data {
        Some(d) => d.len() as u64,
        None => count()?,
    };
    let at = memory.allocate(0, bytes).map_err(|e| e.to_string())?;
    if let Some(data) = data {
        memory.write(at, &data).map_err(|e| e.to_string())?;
    }
    Ok((at.to_le_bytes().to_vec(), Some((at, bytes))))
}

fn run(file: &str, kernel: &str, words: &[String]) -> Result<(), String> {
    let module = Module::parse(&text(file)?).map_err(|e| format!("{file}: {e}"))?;
    let mut memory = Memory::new();
    let instance = Instance::load(Arc::new(module), &mut memory, 0).map_err(|e| e.to_string())?;
    let (mut launch, mut options, mut show) = (Launch::new([1; 3], [32, 1, 1]), Options::default(), 8);
    options.threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut values, mut buffers) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
        match &word[..] {
            "--grid" => launch.grid = three(value()?)?,
            "--block" => launch.block = three(value()?)?,
            "--cluster" => launch.cluster = three(value()?)?,
            "--shared" => launch.dynamic_shared = three(value()?)?[0],
            "--cooperative" => launch.cooperative = true,
            "--schedule" => options.schedule = schedule(value()?)?,
            "--threads" => options.threads = three(value()?)?[0] as usize,
            "--show" => show = three(value()?)?[0] as usize,
            _ => {
                let (bytes, buffer) = argument(word, &mut memory)?;
                values.push(bytes);
                buffers.extend(buffer);
            }
        }
    }
    let slices: Vec<&[u8]> = values.iter().map(|v| &v[..]).collect();
    let k = instance.module().kernel(kernel).ok_or_else(|| format!("{file} has no kernel `{kernel}`"))?;
    launch.params = k.pack(&slices).map_err(|e| e.to_string())?;
    let start = std::time::Instant::now();
    let outcome = ptx_vm::launch(&instance, kernel, &launch, &mut memory, &options);
    print!("{}", String::from_utf8_lossy(&memory.take_printed()));
    let report = outcome.map_err(|e| e.to_string())?;
    println!(
        "{} blocks, {} warp instructions, {:.3} s",
        report.blocks,
        report.instructions,
        start.elapsed().as_secs_f64()
    );
    for (i, (at, bytes)) in buffers.iter().enumerate() {
        let mut out = vec![0; (*bytes as usize).min(show * 4) / 4 * 4];
        memory.read(*at, &mut out).map_err(|e| e.to_string())?;
        let shown: Vec<String> = out
            .chunks_exact(4)
            .map(|c| {
                let bits = u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                format!("{bits:#010x} ({})", f32::from_bits(bits))
            })
            .collect();
        println!("buffer {i}, {bytes} bytes: {}", shown.join(" "));
    }
    Ok(())
}
