//! Statements, and what the parser needs to walk the tokens.

use std::sync::Arc;

use super::ast::{Body, Constant, Expr, For, MacroDef, Node, Post, Program, Stmt, Target};
use super::budget::{Fail, Res};
use super::lexer::{Lexed, Token, lex};

/// How deep expressions and statements may be nested. Published templates reach a dozen.
const MAX_NESTING: usize = 60;
const TAGS: &str = "if, for, set, macro, call, filter, with, raw, generation, break, continue";

/// Walks the tokens and collects the program.
pub(super) struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
    depth: usize,
    /// Loops around the present statement, within its macro.
    loops: usize,
    program: Program,
}

/// Parses a template.
pub(super) fn parse(source: &str) -> Res<Program> {
    let tokens = lex(source)?;
    let mut parser = Parser { tokens, at: 0, depth: 0, loops: 0, program: Program::default() };
    let (body, end) = parser.body(&[])?;
    if !end.is_empty() {
        return parser.fail(format!("`{end}` closes nothing"));
    }
    parser.program.body = body;
    Ok(parser.program)
}

impl Parser {
    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Res<T> {
        let line = self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line);
        Err(Fail::new(what).at(line))
    }

    /// The present token does not belong here.
    pub(super) fn unexpected<T>(&self) -> Res<T> {
        match self.peek() {
            Some(Token::Name(name)) => self.fail(format!("unexpected `{name}`")),
            Some(Token::Sign(sign)) => self.fail(format!("unexpected `{sign}`")),
            Some(Token::Str(_)) => self.fail("unexpected string"),
            Some(Token::Int(_) | Token::Float(_)) => self.fail("unexpected number"),
            Some(Token::PrintEnd | Token::TagEnd) => self.fail("unexpected end of a tag"),
            _ => self.fail("unexpected end of the template"),
        }
    }

    /// The token that was just taken does not belong there.
    pub(super) fn unexpected_before<T>(&mut self) -> Res<T> {
        self.at = self.at.saturating_sub(1);
        self.unexpected()
    }

    /// Runs `inner` one level deeper.
    pub(super) fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        if self.depth >= MAX_NESTING {
            return self.fail(format!("nesting of more than {MAX_NESTING} levels"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    pub(super) fn second(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|t| &t.token)
    }

    pub(super) fn advance(&mut self) {
        self.at += 1;
    }

    pub(super) fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(s)) if *s == sign)
    }

    pub(super) fn sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(n)) if n == word)
    }

    pub(super) fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn need(&mut self, sign: &str) -> Res<()> {
        if self.sign(sign) {
            return Ok(());
        }
        let found: Res<()> = self.unexpected();
        found.map_err(|e| Fail { text: format!("{}; `{sign}` is expected", e.text), ..e })
    }

    pub(super) fn name(&mut self) -> Res<String> {
        match self.take() {
            Some(Token::Name(name)) => Ok(name),
            _ => self.unexpected_before(),
        }
    }

    pub(super) fn constant(&mut self, value: Constant) -> Expr {
        self.program.constants.push(value);
        Expr::Const(self.program.constants.len() - 1)
    }

    /// Statements up to a tag of one of these names, which is taken too, or to the end of the template.
    fn body(&mut self, ends: &[&str]) -> Res<(Body, String)> {
        let mut body = Body::new();
        while let Some(Lexed { token, line }) = self.tokens.get(self.at) {
            let line = *line;
            let token = token.clone();
            self.at += 1;
            let stmt = match token {
                Token::Text(text) => {
                    self.program.constants.push(Constant::Str(text));
                    Stmt::Text(self.program.constants.len() - 1)
                }
                Token::PrintBegin => {
                    let value = self.tuple()?;
                    self.end(&Token::PrintEnd)?;
                    Stmt::Print(value)
                }
                _ => {
                    let tag = self.name()?;
                    if ends.contains(&tag.as_str()) {
                        return Ok((body, tag));
                    }
                    self.nested(|p| p.statement(&tag)).map_err(|e| e.at(line))?
                }
            };
            body.push(Node { line, stmt });
        }
        match ends.last() {
            None => Ok((body, String::new())),
            Some(end) => self.fail(format!("`{end}` is missing")),
        }
    }

    /// The end of a tag.
    fn end(&mut self, end: &Token) -> Res<()> {
        if self.peek() != Some(end) {
            return self.unexpected();
        }
        self.advance();
        Ok(())
    }

    /// A body with one end, whose tag may repeat a name.
    fn block(&mut self, end: &str) -> Res<Body> {
        let (body, _) = self.body(&[end])?;
        if matches!(self.peek(), Some(Token::Name(_))) {
            self.advance();
        }
        self.end(&Token::TagEnd)?;
        Ok(body)
    }

    fn statement(&mut self, tag: &str) -> Res<Stmt> {
        Ok(match tag {
            "if" => self.if_chain()?,
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "macro" => self.macro_definition()?,
            "call" => self.call_block()?,
            "filter" => {
                let mut filters = vec![self.filter_name()?];
                self.filter_chain(&mut filters)?;
                self.end(&Token::TagEnd)?;
                Stmt::Filter(filters, self.block("endfilter")?)
            }
            "with" => self.with()?,
            // Marks what is trained on; here its block is plain text.
            "generation" => {
                self.end(&Token::TagEnd)?;
                Stmt::With(Vec::new(), self.block("endgeneration")?)
            }
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.fail(format!("`{tag}` outside of a loop"));
                }
                self.end(&Token::TagEnd)?;
                if tag == "break" { Stmt::Break } else { Stmt::Continue }
            }
            other => {
                return self.fail(format!("tag `{other}` is not known or closes nothing; known are {TAGS}"));
            }
        })
    }

    fn filter_chain(&mut self, filters: &mut Vec<Post>) -> Res<()> {
        while self.is_sign("|") {
            filters.push(self.filter()?);
        }
        Ok(())
    }

    fn if_chain(&mut self) -> Res<Stmt> {
        let mut branches = Vec::new();
        let mut otherwise = Body::new();
        let mut test = self.expression()?;
        self.end(&Token::TagEnd)?;
        loop {
            let (body, tag) = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match tag.as_str() {
                "elif" => {
                    test = self.expression()?;
                    self.end(&Token::TagEnd)?;
                    continue;
                }
                "else" => {
                    self.end(&Token::TagEnd)?;
                    otherwise = self.block("endif")?;
                }
                _ => self.end(&Token::TagEnd)?,
            }
            return Ok(Stmt::If(branches, otherwise));
        }
    }

    fn for_loop(&mut self) -> Res<Stmt> {
        let target = self.targets(false)?;
        if !self.word("in") {
            return self.unexpected();
        }
        let items = self.iterated()?;
        let test = if self.word("if") { Some(self.expression()?) } else { None };
        let recursive = self.word("recursive");
        self.end(&Token::TagEnd)?;
        self.loops += 1;
        let (body, tag) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        self.end(&Token::TagEnd)?;
        let otherwise = if tag == "else" { self.block("endfor")? } else { Body::new() };
        self.program.loops.push(For { target, items, test, recursive, body, otherwise });
        Ok(Stmt::For(self.program.loops.len() - 1))
    }

    /// Names with commas between them; `fields` allows `namespace.field`.
    fn targets(&mut self, fields: bool) -> Res<Target> {
        let first = self.target(fields)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.sign(",") && matches!(self.peek(), Some(Token::Name(_) | Token::Sign("("))) {
            all.push(self.target(fields)?);
        }
        Ok(Target::Tuple(all))
    }

    fn target(&mut self, fields: bool) -> Res<Target> {
        if self.sign("(") {
            let inner = self.nested(|p| p.targets(fields))?;
            self.need(")")?;
            return Ok(inner);
        }
        let name: Arc<str> = self.name()?.into();
        if fields && self.sign(".") {
            return Ok(Target::Field(name, self.name()?.into()));
        }
        Ok(Target::Name(name))
    }

    fn set(&mut self) -> Res<Stmt> {
        let target = self.targets(true)?;
        if self.sign("=") {
            let value = self.tuple()?;
            self.end(&Token::TagEnd)?;
            return Ok(Stmt::Set(target, value));
        }
        let mut filters = Vec::new();
        self.filter_chain(&mut filters)?;
        self.end(&Token::TagEnd)?;
        Ok(Stmt::SetBlock(target, filters, self.block("endset")?))
    }

    fn with(&mut self) -> Res<Stmt> {
        let mut variables = Vec::new();
        while self.peek() != Some(&Token::TagEnd) {
            let target = self.target(false)?;
            self.need("=")?;
            variables.push((target, self.expression()?));
            if !self.sign(",") {
                break;
            }
        }
        self.end(&Token::TagEnd)?;
        Ok(Stmt::With(variables, self.block("endwith")?))
    }

    fn params(&mut self) -> Res<Vec<(Arc<str>, Option<Expr>)>> {
        let mut params = Vec::new();
        self.need("(")?;
        while !self.sign(")") {
            let name = self.name()?.into();
            let default = if self.sign("=") { Some(self.expression()?) } else { None };
            params.push((name, default));
            if !self.is_sign(")") {
                self.need(",")?;
            }
        }
        Ok(params)
    }

    /// A body of its own, where loops around it do not count.
    fn definition(&mut self, name: &str, params: Vec<(Arc<str>, Option<Expr>)>, end: &str) -> Res<usize> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end)?;
        self.loops = loops;
        self.program.macros.push(MacroDef { name: name.into(), params, body });
        Ok(self.program.macros.len() - 1)
    }

    fn macro_definition(&mut self) -> Res<Stmt> {
        let name = self.name()?;
        let params = self.params()?;
        self.end(&Token::TagEnd)?;
        Ok(Stmt::Macro(self.definition(&name, params, "endmacro")?))
    }

    fn call_block(&mut self) -> Res<Stmt> {
        let params = if self.is_sign("(") { self.params()? } else { Vec::new() };
        let call = self.expression()?;
        self.end(&Token::TagEnd)?;
        let called = matches!(&call, Expr::Post(_, posts) if matches!(posts.last(), Some(Post::Call(_))));
        if !called {
            return self.fail("`call` needs a call");
        }
        Ok(Stmt::Call(self.definition("caller", params, "endcall")?, call))
    }
}
