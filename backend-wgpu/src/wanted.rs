//! Which shaders an op may run by, as far as its key says: what `ready` compiles before the first request.
//!
//! A key does not say everything. Of a prompt and of a step of one row other tiles run; whether scores are
//! capped and heads normed the key does not have: both are compiled. Rows that begin at odd places, and gate
//! weights as plain matmuls, are compiled when they first come.

use crate::command::{elem, kv_elem};
use crate::kernel::{Variant, WgpuKernel};
use crate::pipelines::Refused;
use crate::select::{MatmulOf, Select};
use crate::weight;
use engraft_core::mem::WeightFormat;
use engraft_core::ops::{
    AttentionOpKind, ElementwiseOpKind, EmbedOpKind, IndexOpKind, KvOpKind, LinearOpKind, MoeOpKind,
    NormOpKind, OpKind, PictureOpKind, RopeOpKind, RowsOpKind,
};
use engraft_shaders::{
    Attention, Elem, Elementwise, Index, Kernel, Kv, Moe, Norm, Packing, Picture, Reduce, Rescale,
};

/// Rows of a step that shaders differ by: one, a few, many.
const ROWS: [usize; 3] = [1, 2, 512];

/// The shaders of a key on a device.
pub(crate) fn shaders(key: &WgpuKernel, select: &Select) -> Vec<Kernel> {
    let (x, out, reduce) = (elem(key.x), elem(key.out), key.variant.sums());
    let kv = key.kv.map_or(x.into(), kv_elem);
    match key.op {
        OpKind::Embed(kind) => {
            let add = kind == EmbedOpKind::EmbedAdd;
            packing(key.weight).map(|weight| Kernel::Embed { weight, out, add }).into_iter().collect()
        }
        OpKind::Linear(kind) => linear(key, kind, select),
        OpKind::Norm(kind) => vec![match kind {
            NormOpKind::Norm => Kernel::Norm(Norm::Alone, x, reduce),
            NormOpKind::AddNorm => Kernel::Norm(Norm::Add, x, reduce),
            NormOpKind::HeadNorm => Kernel::Norm(Norm::Heads, x, reduce),
            NormOpKind::GroupNorm => Kernel::NormGroups(x),
            NormOpKind::GaussianTopk => Kernel::Rescale(Rescale::Topk, x, reduce),
            NormOpKind::MatchRms => Kernel::Rescale(Rescale::Match, x, reduce),
        }],
        OpKind::Elementwise(kind) => elementwise(kind, x, out),
        OpKind::Moe(kind) => experts(key, kind, select),
        OpKind::Rope(RopeOpKind::Rope) => vec![Kernel::Rope(x)],
        OpKind::Rope(RopeOpKind::QkvRopeAppend) => match kv.plain() {
            Some(kv) => vec![Kernel::RopeAppend(x, kv), Kernel::RopeAppendNorm(x, kv, reduce)],
            None => {
                vec![Kernel::Rope(x), Kernel::Kv(Kv::Append, x, kv), Kernel::Norm(Norm::Heads, x, reduce)]
            }
        },
        OpKind::Kv(kind) => vec![match kind {
            KvOpKind::KvAppend => Kernel::Kv(Kv::Append, x, kv),
            KvOpKind::KvCopyPages => {
                // Rows of codes are copied as words.
                let elem = kv.plain().unwrap_or(Elem::F32);
                Kernel::Kv(Kv::Copy, elem, elem.into())
            }
            KvOpKind::KvRead => Kernel::Kv(Kv::Read, x, kv),
        }],
        OpKind::Attention(kind) => attention(key, kind, select),
        OpKind::Index(IndexOpKind::IndexScores) => {
            kv.plain().map(|kv| Kernel::Index(Index::Scores, x, kv)).into_iter().collect()
        }
        OpKind::Index(IndexOpKind::IndexChoose) => vec![Kernel::Index(Index::Choose, Elem::F32, Elem::F32)],
        // Composed.
        OpKind::Picture(PictureOpKind::Conv) => Vec::new(),
        OpKind::Picture(PictureOpKind::GroupedConv) => vec![Kernel::Picture(Picture::Conv, x)],
        OpKind::Picture(PictureOpKind::LinearAttend) => {
            [Picture::Sums, Picture::Read].map(|how| Kernel::Picture(how, x)).into()
        }
        OpKind::Rows(kind) => vec![match kind {
            RowsOpKind::GatherRows => Kernel::Rows("gather", x),
            RowsOpKind::Scatter => Kernel::Rows("scatter", Elem::F32),
            RowsOpKind::MarkSeen => Kernel::Rows("mark_seen", Elem::F32),
            RowsOpKind::FeedTokens => Kernel::Rows("feed_tokens", Elem::F32),
        }],
        OpKind::Sample(_) => vec![Kernel::Sample],
    }
}

/// A shader of `all`, those of an op's key, that the driver refuses and without which the op cannot run.
///
/// Which of an open key's shaders an op will need is not known: one that is never asked for must not end the
/// load, and one that is asked for is refused then. Where none is left the op cannot run at all.
pub(crate) fn lost(op: OpKind, all: &[Kernel], refused: &[Refused]) -> Option<Kernel> {
    let refused = |kernel: &&Kernel| refused.iter().any(|(of, _)| of == *kernel);
    let first = all.iter().find(refused)?;
    (!is_open(op) || all.iter().all(|kernel| refused(&kernel))).then_some(*first)
}

/// Whether a key leaves open which of its shaders run: by a cap of scores, by norms of heads, by rows that
/// get a bias, by a router that chooses by score.
fn is_open(op: OpKind) -> bool {
    matches!(
        op,
        OpKind::Attention(_)
            | OpKind::Rope(RopeOpKind::QkvRopeAppend)
            | OpKind::Elementwise(ElementwiseOpKind::Convert)
            | OpKind::Moe(MoeOpKind::Route)
    )
}

/// A kernel of every class that has a plainer twin on a device: that exchanges within subgroups, and, where
/// `rows`, that takes several rows or queries, or splits sums over lanes.
pub(crate) fn classes(select: &Select, rows: bool) -> Vec<Kernel> {
    let (x, out, kv) = (Elem::F32, Elem::F32, Elem::F32);
    let (gate, act, vector) = (false, false, true);
    let reduce = Reduce::Subgroups;
    let mut all: Vec<Kernel> =
        [Norm::Alone, Norm::Add, Norm::Heads].map(|how| Kernel::Norm(how, x, reduce)).into();
    all.push(Kernel::RopeAppendNorm(x, kv, reduce));
    for weight in [Packing::F32, Packing::Q4_0, Packing::Q4K] {
        for subgroups in [true, false] {
            let lanes = |rows| Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups };
            all.extend([1, 4].map(lanes));
        }
        let tile = |rows| Kernel::Linear { weight, x, out, rows, gate, vector, act };
        let experts = |rows| Kernel::Experts { weight, x, out, rows, vector, grouped: true };
        all.extend([4, 8].into_iter().flat_map(|rows| [tile(rows), experts(rows)]));
    }
    for (dense, columns) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
        let how = Attention { dense, columns, capped: false, subgroups: true, distances: false };
        all.push(Kernel::Attention(how, x, kv.into()));
    }
    all.extend([1, 2].map(|columns| Kernel::AttentionTile(columns, false, x, kv.into())));
    all.retain(|kernel| match kernel {
        kernel if kernel.subgroups() => select.subgroups(),
        Kernel::LinearLanes { .. } => rows && !select.keeps_order(),
        _ => rows,
    });
    all
}

fn packing(format: Option<WeightFormat>) -> Option<Packing> {
    format.and_then(weight::packing_of)
}

/// Without what came before.
pub(crate) fn each_once(all: impl IntoIterator<Item = Kernel>) -> Vec<Kernel> {
    let mut once = Vec::new();
    all.into_iter().for_each(|kernel| match once.contains(&kernel) {
        true => {}
        false => once.push(kernel),
    });
    once
}

fn linear(key: &WgpuKernel, kind: LinearOpKind, select: &Select) -> Vec<Kernel> {
    let Some(weight) = packing(key.weight) else { return Vec::new() };
    let bytes = weight == Packing::W8A8;
    let of = MatmulOf {
        weight,
        x: if bytes { Elem::F32 } else { elem(key.x) },
        out: elem(key.out),
        gate: kind == LinearOpKind::GatedLinear,
        act: matches!(kind, LinearOpKind::LinearAct | LinearOpKind::GatedLinear),
        vector: !bytes && key.inner.is_multiple_of(4),
    };
    let tiles = ROWS.map(|rows| select.matmul(key.variant, rows, of.vector, true).shader(&of).kernel);
    each_once(bytes.then(|| Kernel::Quantize(elem(key.x))).into_iter().chain(tiles))
}

fn experts(key: &WgpuKernel, kind: MoeOpKind, select: &Select) -> Vec<Kernel> {
    let (x, out) = (elem(key.x), elem(key.out));
    match kind {
        MoeOpKind::Route => {
            [Moe::Route, Moe::RouteByScore, Moe::Group].map(|how| Kernel::Moe(how, Elem::F32)).into()
        }
        MoeOpKind::Combine if key.x == key.out => vec![Kernel::Moe(Moe::Combine, x)],
        MoeOpKind::Combine => vec![Kernel::Moe(Moe::CombineNode, x)],
        MoeOpKind::ExpertLinear => {
            let Some(weight) = packing(key.weight) else { return Vec::new() };
            let bytes = weight == Packing::W8A8;
            let vector = !bytes && key.inner.is_multiple_of(4);
            let tiles = ROWS.map(|share| {
                let rows = select.tile_rows(share);
                Kernel::Experts { weight, x, out, rows, vector, grouped: rows > 1 }
            });
            each_once(bytes.then_some(Kernel::Quantize(x)).into_iter().chain(tiles))
        }
    }
}

fn attention(key: &WgpuKernel, kind: AttentionOpKind, select: &Select) -> Vec<Kernel> {
    let (x, kv) = (elem(key.x), key.kv.map_or(elem(key.x).into(), kv_elem));
    let (columns, subgroups) = (key.columns, key.variant == Variant::Largest { subgroups: true });
    let distances = kind == AttentionOpKind::AttendDisentangled;
    let dense = distances || kind == AttentionOpKind::AttendDense;
    let tiles = !dense && select.has_tiles();
    [false, true]
        .into_iter()
        .flat_map(|capped| {
            let how = Attention { dense, columns, capped, subgroups, distances };
            let alone = Kernel::Attention(how, x, kv);
            [Some(alone), tiles.then_some(Kernel::AttentionTile(columns, capped, x, kv))]
        })
        .flatten()
        .collect()
}

fn elementwise(kind: ElementwiseOpKind, x: Elem, out: Elem) -> Vec<Kernel> {
    use ElementwiseOpKind as Op;
    let how = match kind {
        Op::Add => Elementwise::Add,
        Op::Activate => Elementwise::Activate,
        Op::Xielu => Elementwise::Xielu,
        Op::Gate => Elementwise::Gate,
        Op::Modulate => Elementwise::Modulate,
        Op::Limit => Elementwise::Limit,
        Op::Scale => Elementwise::Scale,
        Op::Convert => {
            return [Elementwise::Convert, Elementwise::AddBias]
                .map(|how| Kernel::Elementwise(how, x, out))
                .into();
        }
    };
    vec![Kernel::Elementwise(how, x, out)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::adapter::AdapterKind;
    use crate::config::WgpuConfig;
    use engraft_core::Error;
    use engraft_core::mem::{Float, KvFormat};
    use engraft_core::ops::Signature;
    use engraft_core::params::Heads;

    /// What the ops dispatch (`ops/rope.rs`, `ops/kv.rs`) is compiled before the first request.
    #[test]
    fn over_codes_rotation_and_append_are_kernels_of_their_own() {
        let select = Select::wanted(&WgpuConfig::default(), AdapterKind::Discrete).unwrap();
        let labels = |op: OpKind, format: KvFormat| -> Vec<String> {
            let heads = Some(Heads { heads: 8, kv_heads: 2, k_dim: 64, v_dim: 64 });
            let of = Signature { kv: Some(format), heads, ..Signature::new(op, Float::Bf16, 64, 2) };
            shaders(&select.kernel(&of).unwrap(), &select).iter().map(Kernel::label).collect()
        };
        let rope = RopeOpKind::QkvRopeAppend.into();
        let of_codes = ["rope_bf16", "kv_append_codes_bf16_fp8", "norm_heads_bf16_subgroups"];
        assert_eq!(labels(rope, KvFormat::FP8), of_codes);
        assert_eq!(labels(rope, Float::Bf16.into())[0], "rope_append_bf16_bf16");
        assert_eq!(labels(KvOpKind::KvCopyPages.into(), KvFormat::INT8), ["kv_copy_f32_f32"]);
        let attend = labels(AttentionOpKind::Attend.into(), KvFormat::INT8);
        let some = ["attention_codes_bf16_int8_c1_subgroups", "attention_tile_codes_bf16_int8_c1"];
        assert!(some.iter().all(|label| attend.iter().any(|found| found == label)), "{attend:?}");
    }

    #[test]
    fn only_what_an_op_cannot_run_without_is_lost() {
        let of = |capped| {
            let how = Attention { dense: true, columns: 1, capped, subgroups: false, distances: false };
            Kernel::Attention(how, Elem::F32, Elem::F32.into())
        };
        let (plain, capped) = (of(false), of(true));
        let refused = |all: &[Kernel]| -> Vec<Refused> {
            all.iter().map(|kernel| (*kernel, Error::internal("not taken"))).collect()
        };
        let attend = OpKind::Attention(AttentionOpKind::AttendDense);
        let lost_of = |op, all: &[Kernel]| lost(op, &[plain, capped], &refused(all));
        assert_eq!(lost_of(attend, &[]), None);
        assert_eq!(lost_of(attend, &[capped]), None);
        assert_eq!(lost_of(attend, &[plain]), None);
        assert_eq!(lost_of(attend, &[capped, plain]), Some(plain));
        assert_eq!(lost_of(attend, &[Kernel::Sample]), None);
        // Both tiles of a matmul are needed: by prompts, and by steps of one row.
        assert_eq!(lost_of(OpKind::Linear(LinearOpKind::Linear), &[capped]), Some(capped));
    }
}
