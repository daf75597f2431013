//! An op's operands by name: for tests that change each of them, and for reports.

use crate::mem::{BufMut, BufRef, Device, KvMut, KvRef, MatMut, MatRef, Table};
use crate::params::{Heads, Router};
use crate::sample::SampleRow;

/// An operand of an op, or one of its sizes, by reference.
#[allow(missing_docs)] // Reason: the names are those of the views.
pub enum Operand<'o, 'a, D: Device> {
    Mat(&'o mut MatRef<'a, D::Mem>),
    MatMut(&'o mut MatMut<'a, D::Mem>),
    Words(&'o mut BufRef<'a, D::Mem, u32>),
    Slots(&'o mut BufRef<'a, D::Mem, i32>),
    Floats(&'o mut BufRef<'a, D::Mem, f32>),
    Samples(&'o mut BufRef<'a, D::Mem, SampleRow>),
    WordsMut(&'o mut BufMut<'a, D::Mem, u32>),
    Kv(&'o mut KvRef<'a, D::Mem>),
    KvMut(&'o mut KvMut<'a, D::Mem>),
    Weight(&'o mut &'a D::Weight),
    /// A size that the host gives.
    Size(&'o mut usize),
}

/// Operands by name.
pub type Operands<'o, 'a, D> = Vec<(&'static str, Operand<'o, 'a, D>)>;

/// A field of an op that has views or sizes in it.
pub(crate) trait Listed<'a, D: Device> {
    /// Appends them: a single one as `name`, those of a group by names of their own.
    fn list<'o>(&'o mut self, name: &'static str, all: &mut Operands<'o, 'a, D>);
}

/// `rules!(OpKind::Name: field, ...; other, ...)`: which op this is, and its [`operands!`].
macro_rules! rules {
    ($kind:path: $($fields:tt)+) => {
        fn kind(&self) -> $crate::ops::OpKind {
            $kind.into()
        }

        $crate::ops::operand::operands!($($fields)+);
    };
}

/// `operands!(field, ...; other, ...)`: the fields with views or sizes, then all others, so that a field
/// which was forgotten does not compile.
macro_rules! operands {
    ($($field:ident),+ $(; $($other:ident),+)?) => {
        fn operands<'o>(&'o mut self) -> $crate::ops::Operands<'o, 'a, D> {
            let Self { $($field,)+ $($($other: _,)+)? } = self;
            let mut all = Vec::new();
            $($crate::ops::operand::Listed::<D>::list($field, stringify!($field), &mut all);)+
            all
        }
    };
}

/// `listed!(Type as Variant, ...)`: what is one operand.
macro_rules! listed {
    ($($type:ty as $operand:ident),+ $(,)?) => {
        $(impl<'a, D: Device> Listed<'a, D> for $type {
            fn list<'o>(&'o mut self, name: &'static str, all: &mut Operands<'o, 'a, D>) {
                all.push((name, Operand::$operand(self)));
            }
        })+
    };
}

/// `groups!(Type { field: "name", ... }, ...)`: what has several operands.
macro_rules! groups {
    ($($type:ident $(<$life:lifetime, $param:ty>)? { $($field:ident: $name:literal),+ }),+ $(,)?) => {
        $(impl<'a, D: $crate::mem::Device> $crate::ops::operand::Listed<'a, D> for $type $(<$life, $param>)? {
            fn list<'o>(&'o mut self, _: &'static str, all: &mut $crate::ops::Operands<'o, 'a, D>) {
                $($crate::ops::operand::Listed::<D>::list(&mut self.$field, $name, all);)+
            }
        })+
    };
}

pub(super) use {groups, operands, rules};

listed!(
    MatRef<'a, D::Mem> as Mat,
    MatMut<'a, D::Mem> as MatMut,
    BufRef<'a, D::Mem, u32> as Words,
    BufRef<'a, D::Mem, i32> as Slots,
    BufRef<'a, D::Mem, f32> as Floats,
    BufRef<'a, D::Mem, SampleRow> as Samples,
    BufMut<'a, D::Mem, u32> as WordsMut,
    KvRef<'a, D::Mem> as Kv,
    KvMut<'a, D::Mem> as KvMut,
    &'a D::Weight as Weight,
    usize as Size,
);

impl<'a, D: Device, T: Listed<'a, D>> Listed<'a, D> for Option<T> {
    fn list<'o>(&'o mut self, name: &'static str, all: &mut Operands<'o, 'a, D>) {
        if let Some(one) = self {
            one.list(name, all);
        }
    }
}

groups!(
    Heads { heads: "heads", kv_heads: "kv heads", k_dim: "key width", v_dim: "value width" },
    Router { experts: "experts of the router", top_k: "top_k" },
    Table<'a, D::Mem> { pages: "table", stride: "stride" },
);
