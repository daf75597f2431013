//! The syntax tree.

use std::ops::Range;
use std::sync::Arc;

use super::types::Type;

/// A memory space as declarations and instructions name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Const,
    Shared,
    /// `.shared::cluster`: this or another block's shared memory.
    Cluster,
    Local,
    Param,
}

/// Who sees a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Linkage {
    /// Its own text alone.
    #[default]
    Local,
    Visible,
    /// Defined in another text.
    Extern,
    /// Visible, and gives way to another definition.
    Weak,
    /// Visible; of several the largest counts.
    Common,
}

/// A variable's initial value, element by element.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Initial {
    Bits(u64),
    /// The address of another variable plus bytes.
    Address(String, i64),
}

/// A declared variable or parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Variable {
    pub(crate) space: Space,
    pub(crate) name: String,
    pub(crate) ty: Type,
    /// Elements; none for `name[]`.
    pub(crate) elements: Option<u64>,
    pub(crate) align: u32,
    pub(crate) initial: Vec<Initial>,
    pub(crate) linkage: Linkage,
    /// The bytes of the text that declare it, alone or with others.
    pub(crate) span: Range<usize>,
    pub(crate) line: u32,
}

impl Variable {
    /// Size in bytes; an open array has none.
    pub(crate) fn bytes(&self) -> u64 {
        self.elements.unwrap_or(0).saturating_mul(u64::from(self.ty.bytes()))
    }
}

/// An operand as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    /// A register, variable, label or function; with an offset when written `name+8`.
    Name(String, i64),
    /// An integer literal (negative ones in two's complement).
    Integer(u64),
    F32(u32),
    F64(u64),
    /// `[base+offset]`, or `[base, {coordinates}]`.
    Address {
        base: Box<Operand>,
        offset: i64,
        coordinates: Vec<Operand>,
    },
    /// `{a, b, ...}`.
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}

/// An instruction as written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Instruction {
    /// The predicate and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) line: u32,
    /// Shared by every place that it is inlined into.
    pub(crate) text: Arc<str>,
    /// Where it comes from.
    pub(crate) loc: Option<Loc>,
}

/// A place in the source that the compiler read, as `.loc` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Loc {
    /// Number of the file, and the line in it.
    pub(crate) at: (u32, u32),
    /// The same of the call that was inlined.
    pub(crate) inlined: Option<(u32, u32)>,
    /// The line at which the inline assembly begins that this is in.
    pub(crate) assembly: Option<u32>,
}

/// What a body is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    Instruction(Instruction),
    Label(String, u32),
    Scope(Vec<Item>),
    Registers {
        ty: Type,
        names: Vec<(String, Option<u32>)>,
        line: u32,
    },
    Variable(Variable),
    /// `name: .branchtargets a, b;`, or `.calltargets`.
    Targets(String, Vec<String>),
    /// `name: .callprototype (.param .b32 _) _ (.param .b64 _);`
    Prototype(String, Function),
}

/// A kernel or a device function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Function {
    pub(crate) entry: bool,
    pub(crate) name: String,
    pub(crate) returns: Vec<Variable>,
    pub(crate) parameters: Vec<Variable>,
    /// Performance directives: name and numbers.
    pub(crate) directives: Vec<(String, Vec<u32>)>,
    pub(crate) body: Option<Vec<Item>>,
    pub(crate) linkage: Linkage,
    /// The bytes of the text that it takes, and those up to its body.
    pub(crate) span: Range<usize>,
    pub(crate) head: Range<usize>,
    pub(crate) line: u32,
}

/// Another name of a function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Alias {
    /// Declared in the text, without a body.
    pub(crate) name: String,
    /// Defined in the text.
    pub(crate) target: String,
    /// The bytes of the text that it takes.
    pub(crate) span: Range<usize>,
    pub(crate) line: u32,
}

/// A whole text.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct File {
    pub(crate) version: [u32; 2],
    pub(crate) target: String,
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    pub(crate) aliases: Vec<Alias>,
    /// The source files by their numbers.
    pub(crate) sources: Vec<(u32, String)>,
}
