//! Recursive descent over the tokens. Nesting is limited, so no text can exhaust the stack.

mod directives;

use super::lexer::{Kind, Token, tokens};
use super::syntax::{File, Function, Initial, Instruction, Item, Linkage, Loc, Operand, Space, Variable};
use super::types::Type;
use super::words::{literal, space, space_of_pointer};
use crate::Error;

/// Scopes inside scopes, operands inside operands.
const DEPTH: u32 = 32;
/// Registers of one `%r<n>` declaration.
const REGISTERS: u32 = 1 << 16;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    /// The source line that the last `.loc` named.
    loc: Option<Loc>,
    /// Up to where the text was searched for inline assembly, whether that is inside some, and the line of
    /// the first `.loc` in it.
    assembly: (usize, bool, Option<u32>),
    /// The files that `.file` directives number.
    files: Vec<(u32, String)>,
}

/// Parses a whole text.
pub(crate) fn parse(text: &str) -> Result<File, Error> {
    let (tokens, assembly) = (tokens(text)?, (0, false, None));
    let mut p = Parser { text, tokens, at: 0, loc: None, assembly, files: Vec::new() };
    let mut file = File::default();
    while p.at < p.tokens.len() {
        p.top(&mut file)?;
    }
    p.check_aliases(&file)?;
    file.sources = p.files;
    if file.version == [0, 0] {
        return Err(Error::Syntax { line: 1, what: "no `.version` directive: this is not PTX".into() });
    }
    Ok(file)
}

/// Linking and visibility words in front of a declaration.
fn linkage(word: &str) -> Option<Linkage> {
    Some(match word {
        ".visible" => Linkage::Visible,
        ".extern" => Linkage::Extern,
        ".weak" => Linkage::Weak,
        ".common" => Linkage::Common,
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    /// The place in the text where the next token begins.
    fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(self.text.len(), |t| t.start)
    }

    fn error<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::Syntax { line: self.line(), what: what.into() })
    }

    fn kind(&self) -> Option<Kind<'a>> {
        self.tokens.get(self.at).map(|t| t.kind)
    }

    fn peek_word(&self) -> Option<&'a str> {
        match self.kind() {
            Some(Kind::Word(w)) => Some(w),
            _ => None,
        }
    }

    fn shown(&self) -> String {
        match self.kind() {
            Some(Kind::Word(w)) => format!("`{w}`"),
            Some(Kind::Text(t)) => format!("\"{t}\""),
            Some(Kind::Mark(c)) => format!("`{c}`"),
            None => "the end of the text".into(),
        }
    }

    fn is(&self, mark: char) -> bool {
        self.kind() == Some(Kind::Mark(mark))
    }

    fn eat(&mut self, mark: char) -> bool {
        let hit = self.is(mark);
        self.at += usize::from(hit);
        hit
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let hit = self.peek_word() == Some(word);
        self.at += usize::from(hit);
        hit
    }

    fn expect(&mut self, mark: char) -> Result<(), Error> {
        if self.eat(mark) { Ok(()) } else { self.error(format!("expected `{mark}`, found {}", self.shown())) }
    }

    fn word(&mut self) -> Result<&'a str, Error> {
        match self.peek_word() {
            Some(w) => {
                self.at += 1;
                Ok(w)
            }
            None => self.error(format!("expected a word, found {}", self.shown())),
        }
    }

    /// What a declaration names.
    fn name(&mut self) -> Result<String, Error> {
        match self.peek_word().filter(|w| !w.starts_with(|c: char| c.is_ascii_digit())) {
            Some(w) => {
                self.at += 1;
                Ok(w.into())
            }
            None => self.error(format!("expected a name, found {}", self.shown())),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        let word = self.word()?;
        super::words::integer(word)
            .map_or_else(|| self.error(format!("expected a number, found `{word}`")), Ok)
    }

    fn small(&mut self) -> Result<u32, Error> {
        let n = self.number()?;
        u32::try_from(n).or_else(|_| self.error(format!("{n} is too large here")))
    }

    fn skip_until(&mut self, mark: char) {
        while self.at < self.tokens.len() && !self.eat(mark) {
            self.at += 1;
        }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    fn top(&mut self, file: &mut File) -> Result<(), Error> {
        let (first, start) = (file.variables.len(), self.start());
        let mut how = Linkage::Local;
        while let Some(given) = self.peek_word().and_then(linkage) {
            how = given;
            self.at += 1;
        }
        match self.word()? {
            ".version" => {
                let word = self.word()?;
                let parts: Vec<u32> = word.split('.').filter_map(|n| n.parse().ok()).collect();
                let [major, minor] = parts[..] else { return self.error(format!("`{word}` is no version")) };
                file.version = [major, minor];
            }
            ".target" => {
                file.target = self.word()?.into();
                while self.eat(',') {
                    self.word()?;
                }
            }
            ".address_size" => {
                let n = self.number()?;
                if n != 64 {
                    return self.error(format!("addresses of {n} bits; only 64 are supported"));
                }
            }
            ".file" => self.file_directive(),
            ".section" => self.skip_until('}'),
            ".pragma" => self.skip_until(';'),
            word @ (".entry" | ".func") => {
                let mut f = self.function(word == ".entry")?;
                (f.linkage, f.span) = (how, start..self.start());
                f.head.start = start;
                file.functions.push(f);
            }
            ".alias" => self.alias(file, start)?,
            word => {
                let Some(space) = space(word) else {
                    return self.error(format!("unknown directive `{word}`"));
                };
                self.variables(space, &mut |v| file.variables.push(v))?;
            }
        }
        for v in &mut file.variables[first..] {
            (v.linkage, v.span) = (how, start..self.start());
        }
        Ok(())
    }

    fn function(&mut self, entry: bool) -> Result<Function, Error> {
        let line = self.line();
        let mut returns = Vec::new();
        let mut directives = Vec::new();
        if self.eat_word(".noreturn") {
            directives.push((".noreturn".into(), vec![]));
        }
        if self.is('(') {
            returns = self.parameters()?;
        }
        let name = self.name()?;
        let parameters = if self.is('(') { self.parameters()? } else { Vec::new() };
        while let Some(word) = self.peek_word() {
            self.at += 1;
            let mut numbers = Vec::new();
            match word {
                ".maxntid" | ".reqntid" | ".minnctapersm" | ".maxnctapersm" | ".maxnreg"
                | ".reqnctapercluster" | ".maxclusterrank" => {
                    numbers.push(self.small()?);
                    while self.eat(',') {
                        numbers.push(self.small()?);
                    }
                }
                ".pragma" => self.skip_until(';'),
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" => {}
                _ => return self.error(format!("unknown directive `{word}` of `{name}`")),
            }
            directives.push((word.into(), numbers));
        }
        self.loc = None;
        let head = 0..self.start();
        let body = if self.eat(';') {
            None
        } else {
            self.expect('{')?;
            Some(self.items(0)?)
        };
        let (linkage, span) = (Linkage::Local, 0..0);
        Ok(Function { entry, name, returns, parameters, directives, body, linkage, span, head, line })
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, Error> {
        self.expect('(')?;
        let mut out = Vec::new();
        while !self.eat(')') {
            let word = self.word()?;
            match word {
                ".param" => out.push(self.variable(Space::Param)?),
                _ => {
                    return self.error(format!(
                        "expected `.param`, found `{word}`: register parameters are not supported"
                    ));
                }
            }
            if !self.eat(',') && !self.is(')') {
                return self.error(format!("expected `,` or `)`, found {}", self.shown()));
            }
        }
        Ok(out)
    }

    fn variables(&mut self, space: Space, out: &mut dyn FnMut(Variable)) -> Result<(), Error> {
        let first = self.variable(space)?;
        let (ty, align) = (first.ty, first.align);
        out(first);
        while self.eat(',') {
            out(self.declarator(space, ty, align)?);
        }
        self.expect(';')
    }

    /// `.align 8 .b8 name[16] = {...}` without the space word.
    fn variable(&mut self, space: Space) -> Result<Variable, Error> {
        let (mut align, mut ty, mut lanes) = (0, None, 1);
        while let Some(word) = self.peek_word().filter(|w| w.starts_with('.')) {
            self.at += 1;
            match word {
                ".align" => {
                    align = self.small()?;
                    if !align.is_power_of_two() || align > 1 << 16 {
                        return self.error(format!("an alignment of {align}"));
                    }
                }
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                // `.ptr .global .align 16` describes what a pointer parameter points to.
                ".ptr" => {
                    while self.peek_word().is_some_and(space_of_pointer) {
                        self.at += 1;
                    }
                    if self.eat_word(".align") {
                        self.small()?;
                    }
                }
                ".attribute" => self.attributes()?,
                _ => match Type::parse(&word[1..]) {
                    Some(t) => ty = Some(t),
                    None => return self.error(format!("unknown type `{word}`")),
                },
            }
        }
        let Some(ty) = ty else { return self.error("a declaration without a type") };
        let align = if align == 0 { ty.bytes() * lanes } else { align };
        let mut v = self.declarator(space, ty, align)?;
        v.elements = v.elements.map(|n| n.saturating_mul(u64::from(lanes)));
        Ok(v)
    }

    /// `(.unified(19, 95))`, which changes nothing here; `.managed` would.
    fn attributes(&mut self) -> Result<(), Error> {
        self.expect('(')?;
        while !self.eat(')') {
            match self.word()? {
                ".managed" => {
                    let (line, text) = (self.line(), ".attribute(.managed)".into());
                    let what = "modules have no managed variables".into();
                    return Err(Error::Unsupported { line, text, what });
                }
                ".unified" => self.skip_until(')'),
                other => return self.error(format!("unknown attribute `{other}`")),
            }
            self.eat(',');
        }
        Ok(())
    }

    fn declarator(&mut self, space: Space, ty: Type, align: u32) -> Result<Variable, Error> {
        let line = self.line();
        let name = self.name()?;
        let mut elements = Some(1u64);
        while self.eat('[') {
            if self.eat(']') {
                elements = None;
            } else {
                let n = self.number()?;
                elements = elements.map(|e| e.saturating_mul(n));
                self.expect(']')?;
            }
        }
        let mut initial = Vec::new();
        if self.eat('=') {
            self.initial(ty, &mut initial, 0)?;
        }
        if elements.is_none() && !initial.is_empty() {
            elements = Some(initial.len() as u64);
        }
        if elements.is_some_and(|n| n > 1 << 40) {
            return self.error(format!("`{name}` is too large"));
        }
        let (linkage, span) = (Linkage::Local, 0..0);
        Ok(Variable { space, name, ty, elements, align, initial, linkage, span, line })
    }

    fn initial(&mut self, ty: Type, out: &mut Vec<Initial>, depth: u32) -> Result<(), Error> {
        if depth > DEPTH {
            return self.error("initial values nested too deeply");
        }
        if self.eat('{') {
            while !self.eat('}') {
                self.initial(ty, out, depth + 1)?;
                self.eat(',');
            }
            return Ok(());
        }
        let negative = self.eat('-');
        let word = self.word()?;
        if word == "generic" || word == "mask" {
            if word == "mask" {
                return self.error("`mask()` initial values are not supported");
            }
            self.expect('(')?;
            let name = self.word()?.to_string();
            self.expect(')')?;
            let offset = self.offset()?;
            out.push(Initial::Address(name, offset));
            return Ok(());
        }
        out.push(match literal(word) {
            Some(Operand::Integer(n)) => Initial::Bits(if negative { n.wrapping_neg() } else { n }),
            Some(Operand::F32(bits)) if ty == Type::F64 => {
                Initial::Bits(f64::from(f32::from_bits(bits)).to_bits())
            }
            Some(Operand::F32(bits)) => Initial::Bits(bits.into()),
            Some(Operand::F64(bits)) if ty == Type::F32 => {
                Initial::Bits((f64::from_bits(bits) as f32).to_bits().into())
            }
            Some(Operand::F64(bits)) => Initial::Bits(bits),
            _ => {
                let offset = self.offset()?;
                Initial::Address(word.into(), offset)
            }
        });
        Ok(())
    }

    /// An optional `+8` or `+-8`, `-8`.
    fn offset(&mut self) -> Result<i64, Error> {
        let mut sign = 1;
        if self.eat('+') {
            if self.eat('-') {
                sign = -1;
            }
        } else if self.eat('-') {
            sign = -1;
        } else {
            return Ok(0);
        }
        Ok((self.number()? as i64).wrapping_mul(sign))
    }

    fn items(&mut self, depth: u32) -> Result<Vec<Item>, Error> {
        if depth > DEPTH {
            return self.error("scopes nested too deeply");
        }
        let mut out = Vec::new();
        while !self.eat('}') {
            if self.eat('{') {
                out.push(Item::Scope(self.items(depth + 1)?));
                continue;
            }
            if self.eat(';') {
                continue;
            }
            let line = self.line();
            if self.is('@') {
                out.push(Item::Instruction(self.instruction()?));
                continue;
            }
            let Some(word) = self.peek_word() else {
                return self.error(format!("expected an instruction, found {}", self.shown()));
            };
            if self.tokens.get(self.at + 1).is_some_and(|t| t.kind == Kind::Mark(':')) {
                self.at += 2;
                out.push(self.labelled(word, line)?);
                continue;
            }
            match word {
                ".reg" => {
                    self.at += 1;
                    out.push(self.registers(line)?);
                }
                ".loc" => self.loc_directive(),
                ".file" => {
                    self.at += 1;
                    self.file_directive();
                }
                ".pragma" => self.skip_until(';'),
                _ if word.starts_with('.') => {
                    let Some(space) = space(word) else {
                        return self.error(format!("unknown directive `{word}`"));
                    };
                    self.at += 1;
                    self.variables(space, &mut |v| out.push(Item::Variable(v)))?;
                }
                _ => out.push(Item::Instruction(self.instruction()?)),
            }
        }
        Ok(out)
    }

    /// What stands behind a name and a colon: a list, a prototype, or an instruction that it labels.
    fn labelled(&mut self, name: &str, line: u32) -> Result<Item, Error> {
        if self.eat_word(".branchtargets") || self.eat_word(".calltargets") {
            let mut names = vec![self.word()?.to_string()];
            while self.eat(',') {
                names.push(self.word()?.to_string());
            }
            self.expect(';')?;
            return Ok(Item::Targets(name.into(), names));
        }
        if !self.eat_word(".callprototype") {
            return Ok(Item::Label(name.into(), line));
        }
        let loc = self.loc;
        let prototype = self.function(false)?;
        self.loc = loc;
        if prototype.body.is_some() {
            return self.error(format!("prototype `{name}` has a body"));
        }
        Ok(Item::Prototype(name.into(), prototype))
    }

    fn registers(&mut self, line: u32) -> Result<Item, Error> {
        let mut word = self.word()?;
        if word == ".v2" || word == ".v4" {
            return self.error("vector registers are not supported");
        }
        word = word.trim_start_matches('.');
        let Some(ty) = Type::parse(word) else { return self.error(format!("unknown type `.{word}`")) };
        let mut names = Vec::new();
        loop {
            let name = self.word()?.to_string();
            let mut count = None;
            if self.eat('<') {
                let n = self.small()?;
                if n > REGISTERS {
                    return self.error(format!("{n} registers of one name, {REGISTERS} allowed"));
                }
                count = Some(n);
                self.expect('>')?;
            }
            names.push((name, count));
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(Item::Registers { ty, names, line })
    }

    fn instruction(&mut self) -> Result<Instruction, Error> {
        let (line, start) = (self.line(), self.tokens[self.at].start);
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            guard = Some((self.word()?.to_string(), negated));
        }
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        if !self.is(';') {
            loop {
                operands.push(self.operand(0)?);
                if !self.eat(',') {
                    break;
                }
            }
        }
        let end = self.tokens.get(self.at).map_or(self.text.len(), |t| t.start);
        self.expect(';')?;
        let text = self.text[start..end].split_whitespace().collect::<Vec<_>>().join(" ") + ";";
        Ok(Instruction { guard, opcode, operands, line, text: text.into(), loc: self.loc })
    }

    fn list(&mut self, close: char, depth: u32) -> Result<Vec<Operand>, Error> {
        let mut out = Vec::new();
        while !self.eat(close) {
            out.push(self.operand(depth + 1)?);
            if !self.eat(',') && !self.is(close) {
                return self.error(format!("expected `,` or `{close}`, found {}", self.shown()));
            }
        }
        Ok(out)
    }

    fn operand(&mut self, depth: u32) -> Result<Operand, Error> {
        if depth > DEPTH {
            return self.error("operands nested too deeply");
        }
        if self.eat('{') {
            let mut list = self.list('}', depth)?;
            // One register in braces is the register.
            return Ok(if list.len() == 1 { list.remove(0) } else { Operand::Vector(list) });
        }
        if self.eat('(') {
            return Ok(Operand::List(self.list(')', depth)?));
        }
        if self.eat('!') {
            return Ok(Operand::Not(Box::new(self.operand(depth + 1)?)));
        }
        if self.eat('[') {
            let (base, offset) = match self.operand(depth + 1)? {
                Operand::Name(name, offset) => (Operand::Name(name, 0), offset),
                other => (other, 0),
            };
            let mut coordinates = Vec::new();
            if self.eat(',') {
                match self.operand(depth + 1)? {
                    Operand::Vector(list) => coordinates = list,
                    other => coordinates.push(other),
                }
            }
            self.expect(']')?;
            return Ok(Operand::Address { base: Box::new(base), offset, coordinates });
        }
        if self.eat('-') {
            return match self.operand(depth + 1)? {
                Operand::Integer(n) => Ok(Operand::Integer(n.wrapping_neg())),
                Operand::F32(b) => Ok(Operand::F32(b ^ 1 << 31)),
                Operand::F64(b) => Ok(Operand::F64(b ^ 1 << 63)),
                _ => self.error("`-` before something that is not a number"),
            };
        }
        let word = self.word()?;
        let first = match literal(word) {
            Some(value) => value,
            None => Operand::Name(word.into(), self.offset()?),
        };
        if self.eat('|') {
            let second = self.operand(depth + 1)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }
}
