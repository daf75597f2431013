//! Row look-up.

use super::check::Check;
use super::stem::kinds;
use super::{Add, OpKind, Rules, Run, Signature, operands, send};
use crate::Result;
use crate::mem::{BufRef, Device, MatMut, Weight};

/// `out[t] = table[ids[t]]`, or `out[t] += table[ids[t]]`: ids `[tokens]`, table `[vocab, cols]`, out
/// `[tokens, cols]`. An id beyond the table gives a row of zeros.
pub struct Embed<'a, D: Device> {
    /// `[tokens]`.
    pub ids: BufRef<'a, D::Mem, u32>,
    /// `[vocab, cols]`.
    pub table: &'a D::Weight,
    /// Adds to what `out` holds; the composition looks rows up in this scratch `[tokens, cols]`.
    pub add: Option<MatMut<'a, D::Mem>>,
    /// `[tokens, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

kinds!(Embed, EmbedOpKind: Embed = "embed", EmbedAdd = "embed_add": fused);

impl<'a, D: Device> Rules<'a, D> for Embed<'a, D> {
    fn kind(&self) -> OpKind {
        if self.add.is_some() { EmbedOpKind::EmbedAdd } else { EmbedOpKind::Embed }.into()
    }

    fn check(&self, check: &Check) -> Result<()> {
        check.table(self.table)?;
        check.same("rows", self.out.rows(), self.ids.len())?;
        check.same("columns", self.out.cols(), self.table.info().cols)?;
        self.add.as_ref().map_or(Ok(()), |scratch| check.alike(self.out.layout(), scratch.layout()))
    }

    fn signature(&self) -> Signature {
        let info = self.table.info();
        let plain = Signature::new(self.kind(), self.out.dtype(), info.cols, info.rows);
        Signature { weight: Some(info.format), ..plain }
    }

    operands!(ids, table, out, add);

    /// `scratch = table[ids]; out += scratch`.
    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let Some(mut scratch) = self.add else { return send(to, Embed { add: None, ..self }) };
        send(to, Embed { ids: self.ids, table: self.table, add: None, out: scratch.reborrow() })?;
        send(to, Add { acc: self.out, x: scratch.as_ref() })
    }
}
