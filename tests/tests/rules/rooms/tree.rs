//! The `mod` tree of crates as `syn` reads it: modules, what they define and import, and the paths they name.
//!
//! Test code is left out. Not seen: names inside strings, and methods, which no path leads to.

use super::tokens;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// One `use`, without braces.
pub struct Use {
    pub path: Vec<String>,
    /// The name that it brings in; none for a glob.
    pub name: Option<String>,
    /// Whether it has a visibility: other modules are meant to take the name from here.
    pub exported: bool,
}

/// One module; several may lie in one file.
#[derive(Default)]
pub struct Module {
    pub parent: Option<usize>,
    pub root: usize,
    pub file: usize,
    /// Several where features choose between files.
    pub children: BTreeMap<String, Vec<usize>>,
    /// What is defined here, and in which file: an exported macro belongs to the root, whatever file it is
    /// in.
    pub items: BTreeMap<String, usize>,
    /// Macros among them: modules below see them without an import.
    pub macros: BTreeMap<String, usize>,
    pub uses: Vec<Use>,
    /// Every path in its code. One that begins with `::` begins with an empty name.
    pub paths: BTreeSet<Vec<String>>,
}

/// Crates that may name each other.
#[derive(Default)]
pub struct World {
    /// Paths from the repository's root.
    pub files: Vec<String>,
    pub modules: Vec<Module>,
    /// Root modules by the name that other crates use.
    pub roots: BTreeMap<String, usize>,
}

/// A module whose file is still to be read.
struct Waiting {
    file: String,
    module: usize,
}

impl World {
    /// Reads a crate from its root file; `text` gives the text of a file that exists.
    pub fn read(&mut self, name: &str, root: &str, text: &dyn Fn(&str) -> Option<String>) {
        let module = self.add(None, root);
        self.roots.insert(name.to_owned(), module);
        let mut waiting = vec![Waiting { file: root.to_owned(), module }];
        while let Some(Waiting { file, module }) = waiting.pop() {
            let source = text(&file).unwrap_or_else(|| panic!("{file} is missing"));
            let parsed = syn::parse_file(&source).unwrap_or_else(|e| panic!("{file}: {e}"));
            let own = file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
            let stem = file.trim_end_matches(".rs").to_owned();
            let children = if file == root || file.ends_with("/mod.rs") { own.clone() } else { stem };
            let exists = |file: &str| text(file).is_some();
            Reader { world: self, module, own, children, exists: &exists, waiting: &mut waiting }
                .visit_file(&parsed);
        }
    }

    fn add(&mut self, parent: Option<usize>, file: &str) -> usize {
        let number = self.modules.len();
        let file = self.files.iter().position(|f| f == file).unwrap_or_else(|| {
            self.files.push(file.to_owned());
            self.files.len() - 1
        });
        let root = parent.map_or(number, |p| self.modules[p].root);
        self.modules.push(Module { parent, root, file, ..Module::default() });
        number
    }
}

/// Whether an item is only there in tests.
pub fn for_tests(attributes: &[syn::Attribute]) -> bool {
    let word = |a: &syn::Attribute| a.parse_args::<syn::Ident>().is_ok_and(|w| w == "test" || w == "doctest");
    attributes.iter().any(|a| a.path().is_ident("test") || (a.path().is_ident("cfg") && word(a)))
}

/// Fills one module from its file.
struct Reader<'a> {
    world: &'a mut World,
    module: usize,
    /// The file's folder: where `#[path]` begins.
    own: String,
    /// Where modules without `#[path]` lie.
    children: String,
    exists: &'a dyn Fn(&str) -> bool,
    waiting: &'a mut Vec<Waiting>,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        &mut self.world.modules[self.module]
    }

    fn define(&mut self, name: &str) {
        let here = self.here();
        here.items.insert(name.to_owned(), here.file);
    }

    fn child(&mut self, name: &str, file: &str) -> usize {
        let module = self.world.add(Some(self.module), file);
        self.here().children.entry(name.to_owned()).or_default().push(module);
        module
    }

    fn enter(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        if let Some((_, items)) = &item.content {
            let file = self.here().file;
            let file = self.world.files[file].clone();
            let inner = self.child(&name, &file);
            let folder = format!("{}/{name}", self.children);
            let outer =
                (std::mem::replace(&mut self.module, inner), std::mem::replace(&mut self.children, folder));
            items.iter().for_each(|i| self.visit_item(i));
            (self.module, self.children) = outer;
            return;
        }
        let mut files: Vec<String> =
            written_paths(&item.attrs).iter().map(|p| joined(&self.own, p)).collect();
        if files.is_empty() {
            files = ["", "/mod"].map(|end| format!("{}/{name}{end}.rs", self.children)).into();
            files.retain(|f| (self.exists)(f));
        }
        assert!(!files.is_empty(), "no file for `mod {name}` below {}", self.children);
        for file in files {
            let module = self.child(&name, &file);
            self.waiting.push(Waiting { file, module });
        }
    }

    fn import(&mut self, tree: &syn::UseTree, path: &mut Vec<String>, exported: bool) {
        let (last, name) = match tree {
            syn::UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.import(&step.tree, path, exported);
                path.pop();
                return;
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, path, exported));
            }
            syn::UseTree::Glob(_) => (None, None),
            syn::UseTree::Name(name) => (Some(name.ident.to_string()), Some(name.ident.to_string())),
            syn::UseTree::Rename(name) => (Some(name.ident.to_string()), Some(name.rename.to_string())),
        };
        // `a::{self}` is `a`.
        let bare = last.as_deref() == Some("self") && !path.is_empty();
        let name = if bare && name.as_deref() == Some("self") { path.last().cloned() } else { name };
        let path = path.iter().cloned().chain(last.filter(|_| !bare)).collect();
        self.here().uses.push(Use { path, name, exported });
    }

    fn name(&mut self, item: &syn::Item) {
        use syn::Item;
        let name = match item {
            Item::Const(i) => &i.ident,
            Item::Enum(i) => &i.ident,
            Item::Fn(i) => &i.sig.ident,
            Item::Static(i) => &i.ident,
            Item::Struct(i) => &i.ident,
            Item::Trait(i) => &i.ident,
            Item::TraitAlias(i) => &i.ident,
            Item::Type(i) => &i.ident,
            Item::Union(i) => &i.ident,
            Item::Macro(i) => return self.name_macro(i),
            _ => return,
        };
        self.define(&name.to_string());
    }

    fn name_macro(&mut self, item: &syn::ItemMacro) {
        // What a macro makes is taken from its own text and from what it is given.
        tokens::defined(&item.mac.tokens).iter().for_each(|name| self.define(name));
        if item.ident.is_none() {
            tokens::type_names(&item.mac.tokens).iter().for_each(|name| self.define(name));
        }
        if let Some(name) = &item.ident {
            self.define(&name.to_string());
            let here = self.here();
            here.macros.insert(name.to_string(), here.file);
            if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) {
                let (root, file) = (self.here().root, self.here().file);
                self.world.modules[root].items.insert(name.to_string(), file);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if for_tests(attributes(item)) {
            return;
        }
        self.name(item);
        match item {
            syn::Item::Mod(module) => self.enter(module),
            syn::Item::Use(item) => {
                let exported = !matches!(item.vis, syn::Visibility::Inherited);
                let mut path = Vec::from_iter(item.leading_colon.map(|_| String::new()));
                self.import(&item.tree, &mut path, exported);
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.visit_path(&item.path);
        self.here().paths.extend(tokens::paths(&item.tokens));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|s| s.ident.to_string());
        let names = path.leading_colon.map(|_| String::new()).into_iter().chain(names).collect();
        self.here().paths.insert(names);
        visit::visit_path(self, path);
    }

    // What derives are reported may name code: `value_parser = a::b`.
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.here().paths.extend(tokens::paths(&list.tokens));
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item;
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// Files of `#[path = ".."]` and of `#[cfg_attr(.., path = "..")]`.
fn written_paths(attributes: &[syn::Attribute]) -> Vec<String> {
    let value = |pair: &syn::MetaNameValue| match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) if pair.path.is_ident("path") => {
            Some(text.value())
        }
        _ => None,
    };
    let pairs = |a: &syn::Attribute| -> Vec<syn::MetaNameValue> {
        if a.path().is_ident("path") {
            return a.meta.require_name_value().cloned().into_iter().collect();
        }
        if !a.path().is_ident("cfg_attr") {
            return Vec::new();
        }
        let list = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        let parsed = a.parse_args_with(list).unwrap_or_default();
        parsed.iter().filter_map(|meta| meta.require_name_value().ok().cloned()).collect()
    };
    attributes.iter().flat_map(pairs).filter_map(|pair| value(&pair)).collect()
}

/// `path` seen from `folder`.
pub fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
