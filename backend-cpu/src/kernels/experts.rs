//! The matmuls of experts: those of `linear`, expert by expert, over rows that are gathered first.
//!
//! Groups are words of a device buffer: bounds that are no range of the slots leave their expert out, slots
//! beyond the output are multiplied as zeros and dropped.

use super::linear::{After, Epilogue, Packed, linear};
use super::{AlignedBytes, Machine, RawMat, RawMatMut, same};
use engraft_core::{Error, Result};

/// Weights and biases of experts that follow each other.
#[derive(Debug, Clone, Copy)]
pub struct Experts<'a> {
    /// `[n, k]` each.
    pub weights: &'a [Packed],
    /// `[experts * n]`.
    pub bias: Option<&'a [f32]>,
    /// The number of the first.
    pub first: usize,
}

/// Slots by expert: `count + 1` bounds, then the slots.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'a> {
    /// Both parts.
    pub words: &'a [u32],
    /// Experts.
    pub count: usize,
}

impl<'a> Grouped<'a> {
    /// The slots of expert `e`; none where its bounds are no range of them.
    fn of(self, e: usize) -> &'a [u32] {
        let slots = self.words.get(self.count + 1..).unwrap_or_default();
        match self.words.get(e..e + 2) {
            Some(&[from, to]) => slots.get(from as usize..to as usize).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// `out[slot] = x[slot / (slots / rows of x)] w[expert]^T + bias[expert]` for the slots of every expert.
pub fn expert_linear(
    machine: &Machine,
    x: RawMat,
    experts: Experts<'_>,
    groups: Grouped<'_>,
    out: RawMatMut,
    scratch: &mut AlignedBytes,
) -> Result<()> {
    if experts.first.saturating_add(experts.weights.len()) > groups.count {
        let (what, got) = ("experts", groups.count);
        let want = experts.first.saturating_add(experts.weights.len());
        return Err(Error::Shape { op: "expert_linear", what, got, want });
    }
    same("expert_linear", "grouped slots", groups.words.len(), groups.count.saturating_add(1 + out.rows))?;
    same("expert_linear", "slots beyond whole tokens", out.rows % x.rows.max(1), 0)?;
    if out.rows > 0 && x.rows == 0 {
        return Err(Error::Shape { op: "expert_linear", what: "rows of x", got: 0, want: out.rows });
    }
    let call = Call { machine, x, out, per_token: (out.rows / x.rows.max(1)).max(1) };
    for (e, weight) in experts.weights.iter().enumerate() {
        let slots = groups.of(experts.first + e);
        if !slots.is_empty() {
            let bias = experts.bias.map(|all| all.get(e * out.cols..(e + 1) * out.cols).unwrap_or_default());
            call.expert(weight, bias, slots, scratch)?;
        }
    }
    Ok(())
}

/// What all experts of a call share.
struct Call<'a> {
    machine: &'a Machine,
    x: RawMat,
    out: RawMatMut,
    /// Slots that share a row of x.
    per_token: usize,
}

impl Call<'_> {
    /// The rows of one expert's slots: gathered, multiplied, scattered.
    fn expert(
        &self,
        weight: &Packed,
        bias: Option<&[f32]>,
        slots: &[u32],
        scratch: &mut AlignedBytes,
    ) -> Result<()> {
        let (x, out) = (self.x, self.out);
        let (size, out_size) = (x.dtype.bytes(), out.dtype.bytes());
        let (k, n, rows) = (x.cols, out.cols, slots.len());
        let inputs = (rows * k * size).next_multiple_of(64);
        if scratch.len() < inputs + rows * n * out_size {
            *scratch = AlignedBytes::zeroed(inputs + rows * n * out_size);
        }
        let start = scratch.as_mut_ptr();
        let exists = |slot: &u32| (*slot as usize) < out.rows;
        for (r, slot) in slots.iter().enumerate() {
            // SAFETY: whole rows of x, and of the scratch that was sized for them.
            unsafe {
                let to = start.add(r * k * size);
                match exists(slot) {
                    true => {
                        let from = x.row(*slot as usize / self.per_token);
                        std::ptr::copy_nonoverlapping(from, to, k * size);
                    }
                    false => to.write_bytes(0, k * size),
                }
            }
        }
        // SAFETY: the two parts of the scratch, which lives beyond the call and is used by it alone.
        let (gathered, y) = unsafe {
            let y = RawMatMut::new(start.add(inputs), out.dtype, rows, n, n);
            (RawMat::new(start, x.dtype, rows, k, k), y)
        };
        linear(self.machine, gathered, weight, y, &Epilogue { bias, after: After::Nothing })?;
        for (r, slot) in slots.iter().enumerate().filter(|(_, slot)| exists(slot)) {
            // SAFETY: whole rows of the scratch and of the output.
            unsafe {
                let from = start.add(inputs + r * n * out_size);
                std::ptr::copy_nonoverlapping(from, out.row(*slot as usize), n * out_size);
            }
        }
        Ok(())
    }
}
