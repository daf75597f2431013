//! What happens between the fused q|k|v product and attention.

use crate::Result;
use crate::backend::{Backend, KvView, PrimitiveOps, QkvCall};
use crate::mem::MatMut;

/// Norms and rotates q and k in place, one primitive after the other, then appends k and v.
pub fn qkv_rope_append<B: Backend>(
    s: &mut B::Stream,
    mut qkv: MatMut<'_, B::Mem>,
    call: QkvCall<'_, B::Mem, B::Weight>,
    kv: KvView<'_, B::Mem>,
) -> Result<()> {
    let h = call.heads;
    let (q, k) = (0..h.q_cols(), h.q_cols()..h.q_cols() + h.k_cols());
    let v = k.end..k.end + h.v_cols();
    for (columns, norm) in [(q.clone(), call.q_norm), (k.clone(), call.k_norm)] {
        if let Some(norm) = norm {
            s.head_norm(qkv.reborrow().columns(columns.clone())?, h.k_dim, norm)?;
        }
        if let Some(rope) = call.rope {
            s.rope(qkv.reborrow().columns(columns)?, h.k_dim, call.step.positions, rope)?;
        }
    }
    let qkv = qkv.as_ref();
    s.kv_append(qkv.columns(k)?, qkv.columns(v)?, call.step.slots, kv)
}
