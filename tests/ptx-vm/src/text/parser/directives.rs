//! Directives that are no declarations: source files and lines, and other names of functions.

use super::Parser;
use crate::Error;
use crate::text::lexer::Kind;
use crate::text::syntax::{Alias, File, Function, Linkage, Loc, Variable};
use crate::text::words;

/// The first version of PTX that has `.alias`.
const ALIASES_SINCE: [u32; 2] = [6, 3];

impl Parser<'_> {
    /// `.file 1 "name"`: an unknown one names nothing, since it changes nothing that runs.
    pub(super) fn file_directive(&mut self) {
        let number = self.peek_word().and_then(words::integer).and_then(|n| u32::try_from(n).ok());
        let name = match self.tokens.get(self.at + 1).map(|t| t.kind) {
            Some(Kind::Text(name)) => Some(name),
            _ => None,
        };
        self.skip_line();
        if let (Some(number), Some(name)) = (number, name) {
            self.files.push((number, name.into()));
        }
    }

    /// `.loc 1 20 5`, perhaps with `, function_name label, inlined_at 1 33 3`.
    pub(super) fn loc_directive(&mut self) {
        let (first, start) = (self.at, self.start());
        self.skip_line();
        let words: Vec<&str> = self.tokens[first..self.at]
            .iter()
            .filter_map(|t| if let Kind::Word(w) = t.kind { Some(w) } else { None })
            .collect();
        let number = |at: usize| {
            let n = words::integer(words.get(at)?)?;
            u32::try_from(n).ok()
        };
        let pair = |at: usize| Some((number(at)?, number(at + 1)?));
        let inlined = words.iter().position(|&w| w == "inlined_at").and_then(|at| pair(at + 1));
        let at = pair(1).filter(|loc| loc.1 > 0);
        self.follow_assembly(start);
        let assembly = match self.assembly {
            (_, true, None) => {
                self.assembly.2 = at.map(|at| at.1);
                self.assembly.2
            }
            (_, true, first) => first,
            _ => None,
        };
        self.loc = at.map(|at| Loc { at, inlined, assembly });
    }

    /// Looks for the marks that LLVM puts around inline assembly, up to a place in the text.
    fn follow_assembly(&mut self, start: usize) {
        let passed = self.text.get(self.assembly.0..start).unwrap_or("");
        let last = |mark| passed.rfind(mark);
        let (begin, end) = (last("// begin inline asm"), last("// end inline asm"));
        self.assembly.0 = start;
        if begin != end {
            (self.assembly.1, self.assembly.2) = (begin > end, None);
        }
    }

    /// `.alias name, target;`
    pub(super) fn alias(&mut self, file: &mut File, start: usize) -> Result<(), Error> {
        let line = self.line();
        let name = self.word()?.to_string();
        self.expect(',')?;
        let target = self.word()?.to_string();
        self.expect(';')?;
        file.aliases.push(Alias { name, target, span: start..self.start(), line });
        Ok(())
    }

    /// Refuses aliases of what is no function of the text. Source: PTX ISA 8.7, `.alias`.
    pub(super) fn check_aliases(&self, file: &File) -> Result<(), Error> {
        for (at, alias) in file.aliases.iter().enumerate() {
            let twice = file.aliases[..at].iter().any(|other| other.name == alias.name);
            if let Some(why) = refused(file, alias, twice) {
                let what = format!("`.alias {}, {}`: {why}", alias.name, alias.target);
                return Err(Error::Syntax { line: alias.line, what });
            }
        }
        Ok(())
    }
}

fn functions<'f>(file: &'f File, name: &str) -> Vec<&'f Function> {
    file.functions.iter().filter(|f| f.name == name).collect()
}

/// Why an alias is none.
fn refused(file: &File, Alias { name, target, .. }: &Alias, twice: bool) -> Option<String> {
    let [major, minor] = file.version;
    if file.version < ALIASES_SINCE {
        return Some(format!("aliases need PTX 6.3, the text has version {major}.{minor}"));
    }
    let (own, theirs) = (functions(file, name), functions(file, target));
    if let Some(kernel) = own.iter().chain(&theirs).find(|f| f.entry) {
        return Some(format!("`{}` is a kernel, and only functions have aliases", kernel.name));
    }
    let Some(declared) = own.first() else {
        return Some(format!("`{name}` needs a declaration: `.func` without a body"));
    };
    if twice || own.iter().any(|f| f.body.is_some()) {
        return Some(format!("`{name}` is defined twice"));
    }
    if own.iter().any(|f| f.linkage == Linkage::Extern) {
        return Some(format!("`{name}` is `.extern`: another text defines it"));
    }
    let Some(defined) = theirs.iter().find(|f| f.body.is_some()) else {
        return Some(format!("`{target}` has no body in this text"));
    };
    if defined.linkage == Linkage::Weak {
        return Some(format!("`{target}` is `.weak`: another definition may take its place"));
    }
    let bytes = |list: &[Variable]| list.iter().map(Variable::bytes).collect::<Vec<_>>();
    let same = bytes(&declared.returns) == bytes(&defined.returns)
        && bytes(&declared.parameters) == bytes(&defined.parameters);
    (!same).then(|| format!("the results or parameters of `{name}` are not those of `{target}`"))
}
