//! Where an instruction comes from.

use std::sync::Arc;

use super::Lowering;
use crate::text::syntax::Loc;

impl Lowering<'_> {
    /// What a `.loc` says, with the name of its file alone: paths of the machine that compiled it help
    /// nobody.
    pub(super) fn source_of(&mut self, loc: Loc) -> Option<Arc<str>> {
        if let Some(known) = self.sources.get(&loc) {
            return known.clone();
        }
        let file = self.context.file;
        let name = |number: u32| Some(&file.sources.iter().find(|s| s.0 == number)?.1);
        let show = |(number, line): (u32, u32)| {
            let name = name(number)?;
            Some(format!("{}:{line}", name.rsplit(['/', '\\']).next().unwrap_or(name)))
        };
        // LLVM counts the lines of inline assembly up from that of its statement. A compiler of Python has
        // written the assembly itself: its lines are none of the source.
        let python = name(loc.at.0).is_some_and(|name| name.ends_with(".py"));
        let at = (loc.at.0, loc.assembly.filter(|_| python).unwrap_or(loc.at.1));
        let shown = show(at).map(|at| match loc.inlined.and_then(show) {
            Some(call) => format!("{at}, inlined at {call}").into(),
            None => at.into(),
        });
        self.sources.insert(loc, shown.clone());
        shown
    }
}
