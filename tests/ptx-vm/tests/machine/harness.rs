//! Small PTX texts around one instruction, and runs of whole modules.

use std::sync::Arc;

use ptx_vm::{Fault, Instance, Launch, Memory, Module, Options, Report, Schedule};

/// A reproducible stream of operands: random bits mixed with the values where things go wrong.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// In [-1, 1).
    pub fn real(&mut self) -> f32 {
        self.unit() * 2.0 - 1.0
    }

    /// An operand: random bits, a small number, or an edge value of some width.
    pub fn operand(&mut self) -> u64 {
        const EDGES: [u64; 30] = [
            0,
            1,
            2,
            31,
            32,
            33,
            63,
            64,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x7fff_ffff_ffff_ffff,
            0x8000_0000_0000_0000,
            u64::MAX,
            0x3f80_0000,
            0xbf80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0001,
            0x0000_0001_0000_0001,
            0x3c00_3c00,
            0x0001_8001,
            0x4b00_0001,
            0x3f00_0000,
        ];
        match self.below(4) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            1 => self.below(70),
            _ => self.next(),
        }
    }
}

/// One instruction (or a few) under test: the text, the kind of its result, and the model of one lane.
///
/// Operands are in `%r0..%r2`, `%rd0..%rd2`, `%h0..%h2`, `%f0..%f2`, `%fd0..%fd2` (the same bits, truncated).
/// The result is expected in
/// `%r10`, `%rd10`, `%h10`, `%f10`, `%fd10` or `%p1`, as the kind says: `r`, `d`, `h`, `f`, `g`, `p`.
pub type Case<'a> = (&'a str, char, fn(u64, u64, u64) -> u64);

const HEAD: &str = "
.version 8.7
.target sm_90a
.address_size 64
";

const PROLOGUE: &str = "
.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<40>; .reg .f32 %f<16>; .reg .b64 %rd<40>; .reg .f64 %fd<16>;
  ld.param.u64 %rd30, [in]; ld.param.u64 %rd31, [out];
  mov.u32 %r30, %tid.x; mov.u32 %r31, %ctaid.x; mad.lo.s32 %r30, %r31, 32, %r30;
  mul.wide.u32 %rd29, %r30, 24; add.s64 %rd30, %rd30, %rd29;
  mul.wide.u32 %rd28, %r30, 8; add.s64 %rd31, %rd31, %rd28;
  ld.global.u64 %rd0, [%rd30]; ld.global.u64 %rd1, [%rd30+8]; ld.global.u64 %rd2, [%rd30+16];
  cvt.u32.u64 %r0, %rd0; cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2;
  cvt.u16.u64 %h0, %rd0; cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2;
  mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2;
  mov.b64 %fd0, %rd0; mov.b64 %fd1, %rd1; mov.b64 %fd2, %rd2;
  setp.ne.u32 %p0, %r2, 0;
";

fn epilogue(kind: char) -> &'static str {
    match kind {
        'r' => "cvt.u64.u32 %rd10, %r10;",
        'h' => "cvt.u64.u16 %rd10, %h10;",
        'f' => "mov.b32 %r10, %f10; cvt.u64.u32 %rd10, %r10;",
        'g' => "mov.b64 %rd10, %fd10;",
        'p' => "selp.u32 %r10, 1, 0, %p1; cvt.u64.u32 %rd10, %r10;",
        _ => "",
    }
}

/// Results of a text for the operands `[a, b, c]` of each thread, 32 threads to a block.
pub fn results(text: &str, kind: char, operands: &[[u64; 3]]) -> Vec<u64> {
    let ptx = format!("{HEAD}{PROLOGUE}\n{text}\n{}\nst.global.u64 [%rd31], %rd10; ret; }}", epilogue(kind));
    let module = Module::parse(&ptx).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut memory = Memory::new();
    let from = memory.allocate(0, operands.len() as u64 * 24).unwrap();
    let to = memory.allocate(0, operands.len() as u64 * 8).unwrap();
    let bytes: Vec<u8> = operands.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    memory.write(from, &bytes).unwrap();
    let instance = Instance::load(Arc::new(module), &mut memory, 0).unwrap();
    let params = [from, to].iter().flat_map(|x| x.to_le_bytes()).collect();
    let launch = Launch::new([operands.len() as u32 / 32, 1, 1], [32, 1, 1]).with_params(params);
    ptx_vm::launch(&instance, "k", &launch, &mut memory, &Options::default())
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut out = vec![0; operands.len() * 8];
    memory.read(to, &mut out).unwrap();
    out.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Runs every case on 512 operand triples and compares with its model.
pub fn check(cases: &[Case<'_>]) {
    for (n, (text, kind, model)) in cases.iter().enumerate() {
        let mut dice = Dice(n as u64 * 7919 + 1);
        let operands: Vec<[u64; 3]> =
            (0..512).map(|_| [dice.operand(), dice.operand(), dice.operand()]).collect();
        for (got, [a, b, c]) in results(text, *kind, &operands).into_iter().zip(operands) {
            let want = model(a, b, c);
            assert_eq!(got, want, "{text}\n a {a:#x} b {b:#x} c {c:#x}: got {got:#x}, want {want:#x}");
        }
    }
}

/// The same for functions with a tolerance: `close(got, a, b, c)`.
pub fn check_close(text: &str, kind: char, operands: &[[u64; 3]], close: impl Fn(u64, [u64; 3]) -> bool) {
    for (got, o) in results(text, kind, operands).into_iter().zip(operands) {
        assert!(close(got, *o), "{text}: {o:x?} gives {got:#x} ({})", f32::from_bits(got as u32));
    }
}

/// Memory, a module and its instance.
pub struct Bench {
    pub memory: Memory,
    pub instance: Instance,
}

/// An argument of a kernel.
pub enum Arg {
    U64(u64),
    U32(u32),
    F32(f32),
    Bytes(Vec<u8>),
}

impl Bench {
    pub fn new(ptx: &str) -> Self {
        let module = Module::parse(ptx).unwrap_or_else(|e| panic!("{e}"));
        let mut memory = Memory::new();
        let instance = Instance::load(Arc::new(module), &mut memory, 0).unwrap();
        Bench { memory, instance }
    }

    pub fn upload<T: bytemuck::Pod>(&mut self, data: &[T]) -> u64 {
        let at = self.memory.allocate(0, std::mem::size_of_val(data) as u64).unwrap();
        self.memory.write(at, bytemuck::cast_slice(data)).unwrap();
        at
    }

    pub fn empty(&mut self, bytes: usize) -> u64 {
        self.memory.allocate(0, bytes as u64).unwrap()
    }

    pub fn download<T: bytemuck::Pod>(&self, at: u64, count: usize) -> Vec<T> {
        let mut out = vec![T::zeroed(); count];
        self.memory.read(at, bytemuck::cast_slice_mut(&mut out)).unwrap();
        out
    }

    pub fn launch(&self, kernel: &str, grid: [u32; 3], block: [u32; 3], args: &[Arg]) -> Launch {
        let bytes: Vec<Vec<u8>> = args
            .iter()
            .map(|a| match a {
                Arg::U64(x) => x.to_le_bytes().to_vec(),
                Arg::U32(x) => x.to_le_bytes().to_vec(),
                Arg::F32(x) => x.to_le_bytes().to_vec(),
                Arg::Bytes(b) => b.clone(),
            })
            .collect();
        let slices: Vec<&[u8]> = bytes.iter().map(|b| &b[..]).collect();
        let params = self.instance.module().kernel(kernel).expect(kernel).pack(&slices).unwrap();
        Launch::new(grid, block).with_params(params)
    }

    pub fn run(&mut self, kernel: &str, launch: &Launch, options: &Options) -> Result<Report, Fault> {
        ptx_vm::launch(&self.instance, kernel, launch, &mut self.memory, options)
    }

    /// Runs these blocks alone.
    pub fn run_blocks(
        &mut self,
        kernel: &str,
        launch: &Launch,
        blocks: &[u32],
        options: &Options,
    ) -> Result<Report, Fault> {
        ptx_vm::launch_blocks(&self.instance, kernel, launch, blocks, &mut self.memory, options)
    }
}

/// Forward, reverse, and some random schedules.
pub fn schedules(random: u64) -> Vec<Options> {
    let with = |schedule| Options { schedule, ..Options::default() };
    let mut out = vec![with(Schedule::Forward), with(Schedule::Reverse)];
    out.extend((0..random).map(|seed| with(Schedule::Random(seed))));
    out
}

/// A module text with a standard head.
pub fn module(body: &str) -> String {
    format!("{HEAD}{body}")
}

pub fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

/// f32 bits, NaN canonical (PTX ISA 8.7, 9.7.3).
pub fn bits(x: f32) -> u64 {
    if x.is_nan() { 0x7fff_ffff } else { x.to_bits().into() }
}

pub fn g(x: u64) -> f64 {
    f64::from_bits(x)
}

pub fn bits64(x: f64) -> u64 {
    if x.is_nan() { 0xfff8_0000_0000_0000 } else { x.to_bits() }
}

pub fn bf16(x: f32) -> u16 {
    let b = x.to_bits();
    ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16
}

pub fn from_bf16(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}
