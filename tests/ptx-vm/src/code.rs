//! The machine's own instructions: what a PTX instruction becomes when the module is loaded.
//!
//! Everything that can be decided from the text is decided here: which function computes it, which slots it
//! touches, which space an address is in. The machine only dispatches.

use crate::fault::Instruction;
use crate::ops;
use crate::registers::{Lanewise, Pred, Slot, Slots};
use crate::text::syntax::Space;
use std::collections::HashSet;

/// The first offset of shared memory: below lies what the system reserves, so null pointers are out of
/// bounds.
pub(crate) const SHARED_START: u32 = 1024;
/// Where shared memory appears among generic addresses.
pub(crate) const SHARED_WINDOW: u64 = 0x0100_0000_0000;
/// Where the parameter block appears among generic addresses.
pub(crate) const PARAM_WINDOW: u64 = 0x0200_0000_0000;
/// Where a thread's local memory appears among generic addresses.
pub(crate) const LOCAL_WINDOW: u64 = 0x0300_0000_0000;
/// Where functions appear: nothing can be read there, and an indirect call finds them.
pub(crate) const FUNCTION_WINDOW: u64 = 0x0400_0000_0000;
/// Size of each of these windows.
pub(crate) const WINDOW: u64 = 0x0100_0000_0000;
/// Bits of an offset in a block's shared memory; above them stands the block's rank in its cluster plus one.
pub(crate) const SHARED_BITS: u32 = 24;

/// `[base + offset]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    /// The base has 64 bits.
    pub(crate) wide: bool,
    pub(crate) offset: i64,
}

/// A predicate operand, perhaps negated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test {
    pub(crate) pred: Pred,
    pub(crate) negated: bool,
}

/// A read-only register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    SmId,
    SmCount,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    ClusterId(u8),
    ClusterCount(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterSize,
    DynamicShared,
    TotalShared,
    /// `%envreg`: what the driver gives. The second and third hold the address of the grid's workspace.
    Environment(u8),
}

/// The read-only register of that name.
pub(crate) fn special(name: &str) -> Option<Special> {
    if let Some(number) = name.strip_prefix("%envreg").and_then(|n| n.parse().ok()).filter(|n| *n < 32) {
        return Some(Special::Environment(number));
    }
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        _ => (name, 3),
    };
    Some(match (base, axis) {
        ("%laneid", 3) => Special::LaneId,
        ("%warpid", 3) => Special::WarpId,
        ("%nwarpid", 3) => Special::WarpCount,
        ("%smid", 3) => Special::SmId,
        ("%nsmid", 3) => Special::SmCount,
        ("%gridid", 3) => Special::GridId,
        ("%lanemask_eq", 3) => Special::LaneMaskEq,
        ("%lanemask_le", 3) => Special::LaneMaskLe,
        ("%lanemask_lt", 3) => Special::LaneMaskLt,
        ("%lanemask_ge", 3) => Special::LaneMaskGe,
        ("%lanemask_gt", 3) => Special::LaneMaskGt,
        ("%cluster_ctarank", 3) => Special::ClusterRank,
        ("%cluster_nctarank", 3) => Special::ClusterSize,
        ("%dynamic_smem_size", 3) => Special::DynamicShared,
        ("%total_smem_size", 3) => Special::TotalShared,
        (_, 3) => return None,
        ("%tid", a) => Special::Tid(a),
        ("%ntid", a) => Special::Ntid(a),
        ("%ctaid", a) => Special::Ctaid(a),
        ("%nctaid", a) => Special::Nctaid(a),
        ("%clusterid", a) => Special::ClusterId(a),
        ("%nclusterid", a) => Special::ClusterCount(a),
        ("%cluster_ctaid", a) => Special::ClusterCtaid(a),
        ("%cluster_nctaid", a) => Special::ClusterNctaid(a),
        _ => return None,
    })
}

/// A value that is in a slot before the first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// Address of a module variable plus bytes.
    Global(usize, i64),
    /// Start of dynamic shared memory plus bytes.
    Dynamic(i64),
    Special(Special),
}

/// One instruction.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) guard: Option<Test>,
    pub(crate) op: Op,
    /// Index into [`Program::lines`].
    pub(crate) line: u32,
}

/// What an instruction does.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Nop,
    Lanewise(Lanewise, Slots),
    /// The same into a register that some matmul has as sums or as operand a: the next one needs
    /// `wgmma.fence` before it.
    IntoMma(Lanewise, Slots),
    General(Box<ops::general::General>),
    Compare(Box<ops::compare::Compare>),
    Logic(Box<ops::compare::Logic>),
    Select(Box<ops::compare::Select>),
    Clock(Slot, bool),
    /// A label until the program is finished, then an index.
    Branch(u32),
    BranchTable(Slot, Box<[u32]>),
    /// A call through a pointer.
    CallTable(Slot, Box<[ops::control::CallTarget]>),
    Exit,
    Trap(&'static str),
    Sleep,
    Load(Box<ops::data::Access>),
    Store(Box<ops::data::Access>),
    Atomic(Box<ops::atomic::Atomic>),
    Fence(Option<crate::memory::flag::Scope>),
    /// `fence.proxy.async`, of shared and of global memory.
    FenceAsync {
        shared: bool,
        global: bool,
    },
    /// `fence.mbarrier_init`.
    FenceBarrierInit,
    MapShared(Box<ops::space::MapShared>),
    IsSpace {
        p: Pred,
        a: Slot,
        space: Space,
    },
    Shuffle(Box<ops::warp::Shuffle>),
    Vote(Box<ops::warp::Vote>),
    Match(Box<ops::warp::Match>),
    Redux(Box<ops::warp::Redux>),
    ActiveMask(Slot),
    Elect {
        d: Slot,
        p: Pred,
        mask: Slot,
    },
    WarpBarrier(Slot),
    Barrier(Box<ops::barrier::Barrier>),
    ClusterArrive {
        release: bool,
        aligned: bool,
    },
    ClusterWait {
        aligned: bool,
    },
    Mbarrier(Box<ops::mbarrier::Mbarrier>),
    CopyAsync(Box<ops::copy::CopyAsync>),
    CopyCommit,
    /// Groups that may stay in flight; none waits for uncommitted copies too.
    CopyWait(Option<u32>),
    CopyArrive {
        address: Address,
        counted: bool,
    },
    Bulk(Box<ops::bulk::Bulk>),
    BulkCommit,
    BulkWait {
        keep: u32,
        read: bool,
    },
    LoadMatrix(Box<ops::matrix::MatrixAccess>),
    StoreMatrix(Box<ops::matrix::MatrixAccess>),
    MoveMatrix {
        d: Slot,
        a: Slot,
    },
    Mma(Box<ops::matrix::WarpMma>),
    /// `wmma.load` and `wmma.store`.
    Fragment(Box<ops::wmma::FragmentAccess>),
    FragmentMma(Box<ops::wmma::FragmentMma>),
    Wgmma(Box<ops::wgmma::Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait(u32),
    GridWait,
    Print(Box<ops::print::Print>),
    /// `malloc` and `free`.
    Heap(ops::heap::HeapCall),
}

/// A kernel ready to run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) code: Vec<Code>,
    /// Every instruction of the text.
    pub(crate) lines: Vec<Instruction>,
    pub(crate) units: u32,
    pub(crate) preds: u32,
    /// Slot, value, and whether it has 64 bits.
    pub(crate) constants: Vec<(Slot, Constant, bool)>,
    pub(crate) local_bytes: u32,
    /// End of the static shared variables, as an offset in the window.
    pub(crate) shared_end: u32,
    pub(crate) shared_align: u32,
    /// Alignment of dynamic shared memory, when it is used.
    pub(crate) dynamic: Option<u32>,
    pub(crate) parameter_bytes: u32,
    /// Blocks wait for each other in the workspace of a cooperative launch.
    pub(crate) workspace: bool,
    /// Some instruction orders blocks among each other (atomics, fences, strong accesses).
    pub(crate) orders_blocks: bool,
    /// It calls `malloc` or `free`.
    pub(crate) heap: bool,
    /// What a block does may depend on other blocks or on the time: blocks run one after another.
    pub(crate) dependent: bool,
}

impl Program {
    /// Has arithmetic noted that writes registers of matmuls.
    pub(crate) fn watch_mma(&mut self) {
        let of = |code: &Code| if let Op::Wgmma(w) = &code.op { w.registers() } else { Vec::new() };
        let watched: HashSet<Slot> = self.code.iter().flat_map(of).collect();
        for code in &mut self.code {
            if let Op::Lanewise(f, slots) = code.op
                && watched.contains(&slots[0])
            {
                code.op = Op::IntoMma(f, slots);
            }
        }
    }

    /// Where dynamic shared memory starts.
    pub(crate) fn dynamic_start(&self) -> u32 {
        self.shared_end.next_multiple_of(self.dynamic.unwrap_or(1).max(16))
    }
}
