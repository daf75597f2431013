//! Expressions, by Jinja's grammar and precedence.

use std::sync::Arc;

use super::ast::{Arguments, Comparison, Constant, Expr, Operator, Post};
use super::budget::Res;
use super::lexer::Token;
use super::parser::Parser;

/// Words that end an operand.
const RESERVED: [&str; 6] = ["and", "or", "not", "if", "else", "in"];

impl Parser {
    /// A whole expression with its conditional.
    pub(super) fn expression(&mut self) -> Res<Expr> {
        self.nested(|p| {
            let then = p.or()?;
            if !p.word("if") {
                return Ok(then);
            }
            let test = p.or()?;
            let otherwise = if p.word("else") { Some(p.expression()?) } else { None };
            Ok(Expr::If(Box::new((then, test, otherwise))))
        })
    }

    /// Expressions with commas between them make a tuple.
    pub(super) fn tuple(&mut self) -> Res<Expr> {
        let first = self.expression()?;
        self.tuple_from(first, Self::expression)
    }

    fn tuple_from(&mut self, first: Expr, next: fn(&mut Self) -> Res<Expr>) -> Res<Expr> {
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.sign(",") && !self.ends_expression() {
            items.push(next(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    /// What a loop runs over: a condition may follow, so there is none in it.
    pub(super) fn iterated(&mut self) -> Res<Expr> {
        let first = self.or()?;
        self.tuple_from(first, Self::or)
    }

    fn ends_expression(&self) -> bool {
        let closes = |s| [")", "]", "}", "="].contains(&s);
        match self.peek() {
            Some(Token::Sign(s)) => closes(*s),
            Some(Token::PrintEnd | Token::TagEnd) | None => true,
            Some(Token::Name(n)) => n == "in" || n == "recursive",
            _ => false,
        }
    }

    fn or(&mut self) -> Res<Expr> {
        self.several("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Res<Expr> {
        self.several("and", Self::not, Expr::And)
    }

    fn several(
        &mut self,
        word: &str,
        next: fn(&mut Self) -> Res<Expr>,
        make: fn(Vec<Expr>) -> Expr,
    ) -> Res<Expr> {
        let first = next(self)?;
        if !self.is_word(word) {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.word(word) {
            all.push(next(self)?);
        }
        Ok(make(all))
    }

    fn not(&mut self) -> Res<Expr> {
        let mut times = 0;
        while self.word("not") {
            times += 1;
        }
        let inner = self.compare()?;
        Ok(match times {
            0 => inner,
            n if n % 2 == 1 => Expr::Not(Box::new(inner)),
            _ => Expr::Not(Box::new(Expr::Not(Box::new(inner)))),
        })
    }

    fn compare(&mut self) -> Res<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(how) = self.comparison() {
            rest.push((how, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let signs = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessEqual),
            (">=", Comparison::GreaterEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        if let Some((_, how)) = signs.into_iter().find(|(sign, _)| self.sign(sign)) {
            return Some(how);
        }
        if self.is_word("not") && matches!(self.second(), Some(Token::Name(n)) if n == "in") {
            self.advance();
            self.advance();
            return Some(Comparison::NotIn);
        }
        self.word("in").then_some(Comparison::In)
    }

    fn chain(&mut self, signs: &[(&str, Operator)], next: fn(&mut Self) -> Res<Expr>) -> Res<Expr> {
        let first = next(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = signs.iter().find(|(sign, _)| self.sign(sign)) {
            rest.push((*operator, next(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Res<Expr> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Res<Expr> {
        let first = self.multiplicative()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.sign("~") {
            all.push(self.multiplicative()?);
        }
        Ok(Expr::Concat(all))
    }

    fn multiplicative(&mut self) -> Res<Expr> {
        let signs =
            [("*", Operator::Mul), ("//", Operator::FloorDiv), ("/", Operator::Div), ("%", Operator::Rem)];
        self.chain(&signs, Self::power)
    }

    fn power(&mut self) -> Res<Expr> {
        self.chain(&[("**", Operator::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Res<Expr> {
        self.nested(|p| {
            let inner = match p.peek() {
                Some(Token::Sign(sign @ ("-" | "+"))) => {
                    let minus = *sign == "-";
                    p.advance();
                    Expr::Sign(minus, Box::new(p.unary(false)?))
                }
                _ => p.primary()?,
            };
            let mut posts = Vec::new();
            p.postfix(&mut posts)?;
            if filters {
                p.filters(&mut posts)?;
            }
            Ok(if posts.is_empty() { inner } else { Expr::Post(Box::new(inner), posts) })
        })
    }

    fn primary(&mut self) -> Res<Expr> {
        match self.take() {
            Some(Token::Name(name)) => Ok(match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                word if RESERVED.contains(&word) => return self.fail(format!("unexpected `{word}`")),
                _ => Expr::Name(name.into()),
            }),
            Some(Token::Str(mut text)) => {
                while let Some(Token::Str(more)) = self.peek() {
                    text.push_str(more);
                    self.advance();
                }
                Ok(self.constant(Constant::Str(text)))
            }
            Some(Token::Int(n)) => Ok(self.constant(Constant::Int(n))),
            Some(Token::Float(x)) => Ok(self.constant(Constant::Float(x))),
            Some(Token::Sign("(")) => {
                if self.sign(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple()?;
                self.need(")")?;
                Ok(inner)
            }
            Some(Token::Sign("[")) => {
                let mut items = Vec::new();
                while !self.sign("]") {
                    items.push(self.expression()?);
                    self.comma("]")?;
                }
                Ok(Expr::List(items))
            }
            Some(Token::Sign("{")) => {
                let mut entries = Vec::new();
                while !self.sign("}") {
                    let key = self.expression()?;
                    self.need(":")?;
                    entries.push((key, self.expression()?));
                    self.comma("}")?;
                }
                Ok(Expr::Dict(entries))
            }
            _ => self.unexpected_before(),
        }
    }

    /// A comma, unless the list ends here.
    fn comma(&mut self, end: &str) -> Res<()> {
        if self.is_sign(end) { Ok(()) } else { self.need(",") }
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, posts: &mut Vec<Post>) -> Res<()> {
        loop {
            if self.sign(".") {
                posts.push(match self.take() {
                    Some(Token::Name(name)) => Post::Attr(name.into()),
                    Some(Token::Int(n)) => Post::Item(self.constant(Constant::Int(n))),
                    _ => return self.unexpected_before(),
                });
            } else if self.sign("[") {
                posts.push(self.subscript()?);
                self.need("]")?;
            } else if self.is_sign("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Res<Post> {
        let mut parts = [None, None, None];
        let (mut at, mut sliced) = (0, false);
        while !self.is_sign("]") {
            if self.sign(":") {
                (at, sliced) = (at + 1, true);
                if at > 2 {
                    return self.fail("a slice has three parts at most");
                }
            } else if parts[at].is_some() {
                return self.unexpected();
            } else {
                parts[at] = Some(if sliced { self.expression()? } else { self.tuple()? });
            }
        }
        if sliced {
            return Ok(Post::Slice(Box::new(parts)));
        }
        match parts {
            [Some(item), ..] => Ok(Post::Item(item)),
            _ => self.unexpected(),
        }
    }

    /// Filters and tests.
    fn filters(&mut self, posts: &mut Vec<Post>) -> Res<()> {
        loop {
            if self.is_sign("|") {
                posts.push(self.filter()?);
            } else if self.word("is") {
                let negated = self.word("not");
                let name = self.dotted()?;
                let arguments = self.test_arguments()?;
                posts.push(Post::Test(name, arguments, negated));
            } else if self.is_sign("(") {
                posts.push(Post::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    /// `| name(arguments)`.
    pub(super) fn filter(&mut self) -> Res<Post> {
        self.need("|")?;
        self.filter_name()
    }

    /// `name(arguments)` of a filter.
    pub(super) fn filter_name(&mut self) -> Res<Post> {
        let name = self.dotted()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(Post::Filter(name, arguments))
    }

    fn dotted(&mut self) -> Res<Arc<str>> {
        let mut name = self.name()?;
        while self.sign(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }

    fn test_arguments(&mut self) -> Res<Arguments> {
        let operand = match self.peek() {
            Some(Token::Sign("(")) => return self.arguments(),
            Some(Token::Name(n)) => n != "is" && !RESERVED.contains(&n.as_str()),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(Token::Sign(s)) => ["[", "{"].contains(s),
            _ => false,
        };
        if !operand {
            return Ok(Arguments::default());
        }
        let inner = self.primary()?;
        let mut posts = Vec::new();
        self.postfix(&mut posts)?;
        let operand = if posts.is_empty() { inner } else { Expr::Post(Box::new(inner), posts) };
        Ok(Arguments { positional: vec![operand], named: Vec::new() })
    }

    /// Arguments in parentheses.
    pub(super) fn arguments(&mut self) -> Res<Arguments> {
        self.need("(")?;
        let mut arguments = Arguments::default();
        while !self.sign(")") {
            let named =
                matches!((self.peek(), self.second()), (Some(Token::Name(_)), Some(Token::Sign("="))));
            if named {
                let name = self.name()?;
                self.need("=")?;
                arguments.named.push((name.into(), self.expression()?));
            } else if !arguments.named.is_empty() {
                return self.fail("an argument without a name follows one with a name");
            } else {
                arguments.positional.push(self.expression()?);
            }
            self.comma(")")?;
        }
        Ok(arguments)
    }
}
