//! The launches of a step of a LLaMA.

use super::attended::Heads;
use super::build::Builder;
use super::operands::{Arena, Outcome};
use super::step::{Item, Shape, Step};

/// The launches of a step.
///
/// # Errors
/// Operands without room, sizes that no kernel takes.
pub fn launches(step: Step, arena: &mut Arena) -> Outcome<Vec<Item>> {
    let mut b = Builder { step, arena, items: Vec::new() };
    let (Shape { hidden, inner, layers, .. }, heads) = (step.share(), Heads::of(&step));
    let (residual, normed, qkv, attended, gated) = (
        b.rows(hidden)?,
        b.rows(hidden)?,
        b.rows(heads.qkv_cols())?,
        b.rows(heads.heads * heads.v_dim)?,
        b.rows(inner)?,
    );
    let partial = b.rows(hidden)?;
    b.inputs(residual)?;
    b.norm("norm", 1, residual, None, normed)?;
    let tokens = b.tokens();
    b.matmul("qkv", layers, (normed, hidden), (qkv, heads.qkv_cols()), b.plain(), tokens)?;
    b.attention(layers, heads, qkv, attended)?;
    b.summed("attn_out", (attended, heads.heads * heads.v_dim), partial)?;
    b.norm("add_norm", 2 * layers, residual, Some(partial), normed)?;
    b.matmul("gate_up", layers, (normed, hidden), (gated, 2 * inner), b.gated(), tokens)?;
    b.summed("down", (gated, inner), partial)?;
    b.tokens_of(normed)?;
    Ok(b.items)
}
