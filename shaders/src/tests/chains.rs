//! Chains of sums that a compiler may take apart, found in naga's IR.
//!
//! What a variable holds is added to and stored to it again: a chain, whose sums a compiler that reassociates
//! sees as one where nothing opaque stands between them. Sums, differences, choices, negations and calls of
//! functions that only add are no such thing; the guard is, as products are.

use naga::{
    BinaryOperator, Block, Expression, Function, Handle, LocalVariable, Module, ScalarKind, Statement,
    TypeInner, UnaryOperator,
};
use std::collections::{BTreeMap, BTreeSet};

/// Where a value may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Argument(u32),
    Local(Handle<LocalVariable>),
}

/// Where from, and whether it was added to something on the way.
type Origins = BTreeSet<(Origin, bool)>;

/// A function and what it is called with.
type Call<'a> = (Handle<Function>, &'a [Handle<Expression>]);

/// A function as far as values move in it.
struct Flow<'a> {
    module: &'a Module,
    function: &'a Function,
    /// What calls give.
    calls: BTreeMap<Handle<Expression>, Call<'a>>,
    stores: Vec<(Handle<LocalVariable>, Handle<Expression>)>,
    returns: Vec<Handle<Expression>>,
}

impl<'a> Flow<'a> {
    fn of(module: &'a Module, function: &'a Function) -> Self {
        let (calls, stores, returns) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut flow = Self { module, function, calls, stores, returns };
        flow.read(&function.body);
        flow
    }

    fn read(&mut self, block: &'a Block) {
        for statement in block.iter() {
            match statement {
                Statement::Block(inside) => self.read(inside),
                Statement::If { accept, reject, .. } => {
                    [accept, reject].into_iter().for_each(|b| self.read(b))
                }
                Statement::Switch { cases, .. } => cases.iter().for_each(|case| self.read(&case.body)),
                Statement::Loop { body, continuing, .. } => {
                    [body, continuing].into_iter().for_each(|b| self.read(b));
                }
                Statement::Store { pointer, value } => {
                    self.stores.extend(self.local(*pointer).map(|local| (local, *value)));
                }
                Statement::Return { value } => self.returns.extend(*value),
                Statement::Call { function, arguments, result: Some(result) } => {
                    self.calls.insert(*result, (*function, &arguments[..]));
                }
                _ => {}
            }
        }
    }

    /// The variable of the function that a pointer leads into.
    fn local(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.local(base),
            _ => None,
        }
    }

    /// Adds where a value may come from that a compiler can see through.
    fn origins(&self, value: Handle<Expression>, added: bool, to: &mut Origins) {
        match &self.function.expressions[value] {
            Expression::FunctionArgument(number) => _ = to.insert((Origin::Argument(*number), added)),
            Expression::Load { pointer } => {
                to.extend(self.local(*pointer).map(|local| (Origin::Local(local), added)));
            }
            Expression::Binary { op: BinaryOperator::Add | BinaryOperator::Subtract, left, right } => {
                [left, right].into_iter().for_each(|of| self.origins(*of, true, to));
            }
            Expression::Select { accept, reject, .. } => {
                [accept, reject].into_iter().for_each(|of| self.origins(*of, added, to));
            }
            Expression::Compose { components, .. } => {
                components.iter().for_each(|of| self.origins(*of, added, to));
            }
            Expression::Unary { op: UnaryOperator::Negate, expr } | Expression::Splat { value: expr, .. } => {
                self.origins(*expr, added, to);
            }
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.origins(*base, added, to);
            }
            Expression::CallResult(_) => {
                let Some((called, arguments)) = self.calls.get(&value) else { return };
                for (argument, on_the_way) in
                    Self::of(self.module, &self.module.functions[*called]).returned()
                {
                    self.origins(arguments[argument as usize], added || on_the_way, to);
                }
            }
            _ => {}
        }
    }

    /// The arguments that what the function returns may be, or be a sum with.
    fn returned(&self) -> BTreeSet<(u32, bool)> {
        let mut found = Origins::new();
        self.returns.iter().for_each(|value| self.origins(*value, false, &mut found));
        loop {
            let before = found.len();
            for (origin, added) in found.clone() {
                let Origin::Local(local) = origin else { continue };
                let stored = self.stores.iter().filter(|(to, _)| *to == local);
                stored.for_each(|(_, value)| self.origins(*value, added, &mut found));
            }
            if found.len() == before {
                break;
            }
        }
        let arguments = found.into_iter().filter_map(|(origin, added)| match origin {
            Origin::Argument(number) => Some((number, added)),
            Origin::Local(_) => None,
        });
        arguments.collect()
    }

    fn is_float(&self, local: Handle<LocalVariable>) -> bool {
        let mut inner = &self.module.types[self.function.local_variables[local].ty].inner;
        while let TypeInner::Array { base, .. } = inner {
            inner = &self.module.types[*base].inner;
        }
        inner.scalar_kind() == Some(ScalarKind::Float)
    }

    /// Variables of floats that hold open chains.
    fn open(&self) -> Vec<String> {
        let mut moves = BTreeSet::new();
        for (to, value) in self.stores.iter().filter(|(to, _)| self.is_float(*to)) {
            let mut origins = Origins::new();
            self.origins(*value, false, &mut origins);
            let locals = origins.into_iter().filter_map(|(origin, added)| match origin {
                Origin::Local(from) => Some((from, *to, added)),
                Origin::Argument(_) => None,
            });
            moves.extend(locals);
        }
        // What was added comes back to where it was.
        let leads = |from: Handle<LocalVariable>, to: Handle<LocalVariable>| {
            let (mut seen, mut next) = (BTreeSet::from([from]), vec![from]);
            while let Some(at) = next.pop() {
                let ahead = moves.iter().filter(|(before, ..)| *before == at).map(|(_, behind, _)| *behind);
                next.extend(ahead.filter(|behind| seen.insert(*behind)));
            }
            seen.contains(&to)
        };
        let name = |local: Handle<LocalVariable>| {
            let (of, name) = (&self.function.name, &self.function.local_variables[local].name);
            format!("{} of {}", name.as_deref().unwrap_or("?"), of.as_deref().unwrap_or("main"))
        };
        let open = moves.iter().filter(|(from, to, added)| *added && leads(*to, *from));
        open.map(|(_, to, _)| name(*to)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Variables whose sums compilers may reassociate, by name.
pub(super) fn open_chains(module: &Module) -> Vec<String> {
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    let all = entries.chain(module.functions.iter().map(|(_, function)| function));
    all.flat_map(|function| Flow::of(module, function).open()).collect()
}

#[test]
fn an_open_chain_is_seen_however_it_is_written() {
    let of = |body: &str| {
        let text = format!(
            "var<workgroup> zero: u32;
            fn og(x: f32) -> f32 {{ return bitcast<f32>(bitcast<u32>(x) | zero); }}
            fn madd(a: f32, b: f32, c: f32) -> f32 {{ return og(a * b) + c; }}
            fn kept(v: f32) -> f32 {{ var y = v; return y; }}
            @compute @workgroup_size(1) fn main() {{
                let e = f32(zero); var x = e; var y = e; var n = zero; var all: array<f32, 4>; var i = 1u;
                loop {{ if (n > 9u) {{ break; }} {body} n += 1u; }}
            }}"
        );
        open_chains(&naga::front::wgsl::parse_str(&text).unwrap())
    };
    for open in [
        "x = x + e;",
        "x += e;",
        "x -= e;",
        "x = madd(e, e, x);",
        "x = kept(x + e);",
        "x = select(x + e, x, n > 3u);",
        "x = -(og(e * e) - x);",
        "let s = x + e; x = s;",
        "if (n > 3u) { x = e + x; }",
    ] {
        assert_eq!(of(open), ["x of main"], "{open}");
    }
    assert_eq!(of("all[i] = all[i] + e;"), ["all of main"]);
    assert_eq!(of("y = x + e; x = y;"), ["y of main"]);
    let closed = [
        "x = og(x + e);",
        "x = og(madd(e, e, x));",
        "y = x + e;",
        "x = x * e;",
        "x = kept(x);",
        "i += n;",
        "y = x + e; x = og(y);",
    ];
    for closed in closed {
        assert_eq!(of(closed), [""; 0], "{closed}");
    }
}
