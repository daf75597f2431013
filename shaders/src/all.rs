//! The closed set: every variant that the backend may ask for, so that tests see the same set.

use crate::{
    Attention, Elem, Elementwise, Index, Kernel, Kv, KvElem, Limit, Moe, Norm, Packing, Picture, Reduce,
    Rescale, moves,
};

impl Kernel {
    /// Every kernel that the backend may ask for, with value columns up to `64 * columns` in attention.
    pub fn all(columns: u32) -> Vec<Kernel> {
        let mut all = vec![Kernel::Mark, Kernel::Probe, Kernel::Lanes];
        all.extend([Limit::Read, Limit::Multiply].map(Kernel::Limit));
        for weight in Packing::ALL {
            of_weight(&mut all, weight);
        }
        for (weight, x) in Packing::ALL.into_iter().flat_map(|w| Elem::ALL.map(|x| (w, x))) {
            of_experts(&mut all, weight, x);
        }
        all.extend([Moe::Route, Moe::RouteByScore, Moe::Group].map(|how| Kernel::Moe(how, Elem::F32)));
        for x in Elem::ALL {
            of_element(&mut all, x);
            for kv in Elem::ALL {
                all.extend([Kernel::RopeAppend(x, kv), Kernel::Index(Index::Scores, x, kv)]);
                all.extend(Reduce::ALL.map(|reduce| Kernel::RopeAppendNorm(x, kv, reduce)));
            }
            for kv in Elem::ALL.map(KvElem::Plain).into_iter().chain(KvElem::CODES) {
                of_slab(&mut all, x, kv, columns);
            }
        }
        for found in moves() {
            let types = if found.of_elements { &Elem::ALL[..] } else { &[Elem::F32] };
            all.extend(types.iter().map(|x| Kernel::Rows(found.name, *x)));
        }
        all.extend([Kernel::Sample, Kernel::Index(Index::Choose, Elem::F32, Elem::F32)]);
        all
    }
}

/// Matmuls of experts.
fn of_experts(all: &mut Vec<Kernel>, weight: Packing, x: Elem) {
    for (rows, grouped) in [(1, false), (4, true), (8, true)] {
        let vectors: &[bool] = if weight == Packing::W8A8 { &[false] } else { &[false, true] };
        let outs: &[Elem] = if x == Elem::F32 { &[Elem::F32] } else { &[x, Elem::F32] };
        for (&vector, &out) in vectors.iter().flat_map(|v| outs.iter().map(move |out| (v, out))) {
            all.push(Kernel::Experts { weight, x, out, rows, vector, grouped });
        }
    }
}

/// Look-ups and matmuls, but for those of experts.
fn of_weight(all: &mut Vec<Kernel>, weight: Packing) {
    for out in Elem::ALL {
        all.extend([false, true].map(|add| Kernel::Embed { weight, out, add }));
        for (x, rows) in Elem::ALL.into_iter().flat_map(|x| [1, 4, 8].map(|r| (x, r))) {
            // Rows that are bytes already have lost their type, and begin where they begin.
            let bytes = weight == Packing::W8A8;
            if x != out && out != Elem::F32 && !bytes || bytes && x != Elem::F32 {
                continue;
            }
            for bits in 0..8 {
                let [gate, act, vector] = [1, 2, 4].map(|bit| bits & bit != 0);
                if !(bytes && vector) {
                    all.push(Kernel::Linear { weight, x, out, rows, gate, vector, act });
                }
                // The same bit for another question.
                let subgroups = vector;
                if rows < 8 && !bytes {
                    all.push(Kernel::LinearLanes { weight, x, out, rows, gate, act, subgroups });
                }
            }
        }
    }
}

/// Rows of one element type.
fn of_element(all: &mut Vec<Kernel>, x: Elem) {
    use Elementwise::{Activate, Add, AddBias, Convert, Gate, Limit, Modulate, Scale, Xielu};
    all.extend([
        Kernel::Moe(Moe::Combine, x),
        Kernel::Moe(Moe::CombineNode, x),
        Kernel::Quantize(x),
        Kernel::NormGroups(x),
        Kernel::Rope(x),
        Kernel::Kv(Kv::Copy, x, x.into()),
    ]);
    for reduce in Reduce::ALL {
        all.extend([Norm::Alone, Norm::Add, Norm::Heads].map(|how| Kernel::Norm(how, x, reduce)));
        all.extend([Rescale::Topk, Rescale::Match].map(|how| Kernel::Rescale(how, x, reduce)));
    }
    all.extend(
        [Add, Activate, Xielu, Gate, Modulate, Limit, Scale].map(|how| Kernel::Elementwise(how, x, x)),
    );
    all.extend([Picture::Conv, Picture::Sums, Picture::Read].map(|how| Kernel::Picture(how, x)));
    for how in [Convert, AddBias] {
        all.extend(Elem::ALL.map(|out| Kernel::Elementwise(how, x, out)));
    }
}

/// Rows of one element type and a slab of another.
fn of_slab(all: &mut Vec<Kernel>, x: Elem, kv: KvElem, columns: u32) {
    all.extend([Kv::Append, Kv::Read].map(|how| Kernel::Kv(how, x, kv)));
    for (columns, bits) in (1..=columns).flat_map(|c| [0, 1, 2, 3].map(|bits| (c, bits))) {
        let (capped, subgroups) = (bits & 1 != 0, bits & 2 != 0);
        let kinds = [(false, false), (true, false), (true, true)];
        for (dense, distances) in kinds.into_iter().filter(|(dense, _)| !dense || kv == x.into()) {
            let how = Attention { dense, columns, capped, subgroups, distances };
            all.push(Kernel::Attention(how, x, kv));
        }
        if !subgroups {
            all.push(Kernel::AttentionTile(columns, capped, x, kv));
        }
    }
}
