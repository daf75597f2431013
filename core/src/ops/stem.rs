//! What the ops of one stem have in common: an enum of them, their kinds with names, and the way into
//! [`super::Op`].

/// `dispatch!(Enum: Variant(Type), ...)`: an enum of things with [`super::Rules`], which has them, too.
macro_rules! dispatch {
    ($(#[$doc:meta])* $ops:ident: $($variant:ident($op:ident)),+) => {
        $(#[$doc])*
        pub enum $ops<'a, D: $crate::mem::Device> {
            $(#[doc = concat!("See [`", stringify!($op), "`].")] $variant($op<'a, D>)),+
        }

        impl<'a, D: $crate::mem::Device> $crate::ops::Rules<'a, D> for $ops<'a, D> {
            fn kind(&self) -> $crate::ops::OpKind {
                match self { $(Self::$variant(op) => op.kind()),+ }
            }
            fn check(&self, check: &$crate::ops::Check) -> $crate::Result<()> {
                match self { $(Self::$variant(op) => op.check(check)),+ }
            }
            fn signature(&self) -> $crate::ops::Signature {
                match self { $(Self::$variant(op) => op.signature()),+ }
            }
            fn operands<'o>(&'o mut self) -> $crate::ops::Operands<'o, 'a, D> {
                match self { $(Self::$variant(op) => op.operands()),+ }
            }
            fn compose(self, to: &mut dyn $crate::ops::Run<D>) -> $crate::Result<()> {
                match self { $(Self::$variant(op) => op.compose(to)),+ }
            }
        }
    };
}

/// `stem!(Stem, Ops, OpKind: Struct = "name", ...)`: the enums of a stem and their dispatch.
macro_rules! stem {
    ($stem:ident, $ops:ident, $kind:ident: $($op:ident = $name:literal $(: $fused:ident)?),+ $(,)?) => {
        $crate::ops::stem::dispatch! {
            /// The ops of this stem.
            $ops: $($op($op)),+
        }

        $crate::ops::stem::kinds!($stem, $kind: $($op = $name $(: $fused)?),+);

        $(impl<'a, D: $crate::mem::Device> From<$op<'a, D>> for $crate::ops::Op<'a, D> {
            fn from(op: $op<'a, D>) -> Self {
                $crate::ops::Op::$stem($ops::$op(op))
            }
        })+
    };
}

/// `kinds!(Stem, OpKind: Variant = "name", ...)`: the kinds of a stem alone.
macro_rules! kinds {
    ($stem:ident, $kind:ident: $($op:ident = $name:literal $(: $fused:ident)?),+ $(,)?) => {
        /// Which op of this stem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // Reason: the names are those of the ops.
        pub enum $kind {
            $($op),+
        }

        impl $kind {
            /// All of them.
            pub const ALL: &'static [$kind] = &[$($kind::$op),+];

            /// Name in plans, profiles and messages.
            pub const fn name(self) -> &'static str {
                match self { $($kind::$op => $name),+ }
            }

            /// Whether it has a composition.
            pub const fn is_fused(self) -> bool {
                match self { $($kind::$op => !concat!($(stringify!($fused))?).is_empty()),+ }
            }
        }

        impl From<$kind> for $crate::ops::OpKind {
            fn from(kind: $kind) -> Self {
                $crate::ops::OpKind::$stem(kind)
            }
        }
    };
}

pub(super) use {dispatch, kinds, stem};
