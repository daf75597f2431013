//! The syntax tree of a template.

use std::sync::Arc;

/// A template that can be rendered.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub body: Vec<Node>,
    pub constants: Vec<Constant>,
    pub macros: Vec<MacroDef>,
    pub loops: Vec<For>,
}

/// A literal.
#[derive(Debug, Clone)]
pub(super) enum Constant {
    Str(String),
    Int(i128),
    Float(f64),
}

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Node {
    pub line: usize,
    pub stmt: Stmt,
}

pub(super) type Body = Vec<Node>;

#[derive(Debug)]
pub(super) enum Stmt {
    /// Into the constants.
    Text(usize),
    Print(Expr),
    If(Vec<(Expr, Body)>, Body),
    /// Into the program's loops.
    For(usize),
    Set(Target, Expr),
    /// `{% set x %}...{% endset %}`, with the filters behind the name.
    SetBlock(Target, Vec<Post>, Body),
    /// Into the program's macros.
    Macro(usize),
    /// `{% call m() %}...{% endcall %}`: the caller's macro and the call.
    Call(usize, Expr),
    Filter(Vec<Post>, Body),
    With(Vec<(Target, Expr)>, Body),
    Break,
    Continue,
}

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    Field(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct For {
    pub target: Target,
    pub items: Expr,
    pub test: Option<Expr>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub name: Arc<str>,
    pub params: Vec<(Arc<str>, Option<Expr>)>,
    pub body: Body,
}

/// An expression. Chains of operators of one precedence are lists, so that the tree is no deeper than the
/// text is nested.
#[derive(Debug)]
pub(super) enum Expr {
    /// Into the constants.
    Const(usize),
    None,
    Bool(bool),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Sign(bool, Box<Expr>),
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    If(Box<(Expr, Expr, Option<Expr>)>),
    Post(Box<Expr>, Vec<Post>),
}

/// What stands behind an expression.
#[derive(Debug)]
pub(super) enum Post {
    Attr(Arc<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Arc<str>, Arguments),
    Test(Arc<str>, Arguments, bool),
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub positional: Vec<Expr>,
    pub named: Vec<(Arc<str>, Expr)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}
