//! Attention over pages of any format.

use super::coded::Coded;
use super::paged::{OP, Paged, Pages};
use super::*;
use crate::kernels::kv::Slab;
use engraft_core::mem::KvFormat;
use std::sync::atomic::AtomicBool;

/// Attention over pages: out `[tokens, heads * v_dim]`.
///
/// # Errors
/// `Shape` and `Internal` for bounds, lengths, table rows and pages out of range.
pub fn attend_paged(
    machine: &Machine,
    queries: Queries<'_>,
    slab: Slab,
    pages: Pages<'_>,
    out: RawMatMut,
) -> Result<()> {
    let (heads, layout) = (queries.heads, &slab.layout);
    let group = check_queries(OP, &queries, out)?;
    same(OP, "kv heads of the slab", layout.kv_heads, heads.kv_heads)?;
    same(OP, "key width of the slab", layout.k_dim, heads.k_dim)?;
    same(OP, "value width of the slab", layout.v_dim, heads.v_dim)?;
    pages.check(queries.q.rows, layout.page_size, queries.scores.go_by_position())?;
    let lost = AtomicBool::new(false);
    let paged = |dtype| Paged { slab, pages, group, dtype, lost: &lost };
    match layout.format {
        KvFormat::Plain(dtype) => attend(machine, &Call { queries, group, out, keys: &paged(dtype) })?,
        KvFormat::Coded(code) => {
            let keys = Coded { paged: paged(Float::F32), code };
            attend(machine, &Call { queries, group, out, keys: &keys })?;
        }
    }
    match lost.into_inner() {
        true => Err(Error::internal(format!("{OP}: a page beyond the {} of the slab", layout.pages))),
        false => Ok(()),
    }
}
