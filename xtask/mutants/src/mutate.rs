//! The mutation rules. Each change is put next to the original, selected by its number, so that both are
//! compiled and one runs. Only changes that always compile are made, since one that does not would break the whole build.
//!
//! | original | mutant |
//! |---|---|
//! | `a < b`, `a <= b`, `a > b`, `a >= b` | the other of `<` and `<=`, of `>` and `>=` |
//! | `a == b`, `a != b` | the other one |
//! | `a + b`, `a - b` | the other one |
//! | `a && b`, `a || b` | the other one |
//! | `!a` | `a` |
//! | `if c`, a match's `if c` | `if !c`, where `c` is none of the above |
//! | `call(..);`, `place = value;` | nothing |
//!
//! Types are not known here, so a change is only made where both variants compile for any types:
//! comparisons, sums of numbers, boolean operators, and statements that bind nothing. A change that
//! does not compile would be found by the build of the tree, and a rule here would have to be
//! narrowed.
//!
//! Constants, types and patterns are left alone, since a switch is a call and cannot be evaluated
//! there.

use std::fmt;

use quote::ToTokens;
use syn::{
    Attribute, BinOp, Expr, ExprBinary, ExprUnary, ImplItemFn, ItemConst, ItemFn, ItemMod, ItemStatic, Stmt,
    UnOp, parse_quote,
    spanned::Spanned,
    visit_mut::{self, VisitMut},
};

/// One change.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// The number that selects it.
    pub(crate) number: u32,
    /// Its file, relative to the repository's root.
    pub(crate) file: String,
    /// In the original file: the copy has other lines.
    line: usize,
    /// The innermost function around it; empty outside of functions.
    function: String,
    /// What was done, in the words of the table above.
    rule: String,
    /// Its beginning.
    original: String,
}

/// Longer originals are truncated when they are shown.
const SHOWN_CHARS_MAX: usize = 60;

impl Mutant {
    /// Identifies the change as long as its function and its code do not change.
    pub(crate) fn name(&self) -> String {
        format!("{}: {}: {} of `{}`", self.file, self.function, self.rule, self.original)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (line {}, mutant {})", self.name(), self.line, self.number)
    }
}

/// The changed text of a file; appends its changes.
///
/// The result is one line of tokens: the copy is for the compiler alone.
pub(crate) fn file(text: &str, path: &str, mutants: &mut Vec<Mutant>) -> syn::Result<String> {
    let mut tree = syn::parse_file(text)?;
    let mut mutator = Mutator { path, function: String::new(), mutants };
    mutator.visit_file_mut(&mut tree);
    Ok(tree.into_token_stream().to_string())
}

/// Walks the tree from the inside out, so that a part of a changed expression is changed too.
struct Mutator<'a> {
    path: &'a str,
    function: String,
    mutants: &'a mut Vec<Mutant>,
}

impl Mutator<'_> {
    /// Records a change and returns the call that checks for it.
    fn add(&mut self, rule: &str, original: &impl ToTokens, line: usize) -> Expr {
        let number = u32::try_from(self.mutants.len()).expect("a crate has fewer mutants than that") + 1;
        let text = original.to_token_stream().to_string();
        self.mutants.push(Mutant {
            number,
            file: self.path.to_owned(),
            line,
            function: self.function.clone(),
            rule: rule.to_owned(),
            original: text.chars().take(SHOWN_CHARS_MAX).collect(),
        });
        parse_quote!(crate::mutant(#number))
    }

    /// Names the changes within a function after it.
    fn in_function(&mut self, name: &syn::Ident, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.function, name.to_string());
        visit(self);
        self.function = outer;
    }

    /// `if c`, where no rule has changed `c` itself.
    fn negate(&mut self, condition: &mut Expr, original: &Expr, line: usize) {
        if !is_changed_itself(original) && !has_let(original) {
            let switch = self.add("negation", original, line);
            *condition = parse_quote!(((#condition) != #switch));
        }
    }

    /// `None` if the operator has no counterpart, or a side binds names.
    fn binary(&mut self, binary: &ExprBinary, original: &Expr, line: usize) -> Option<Expr> {
        let other = other(&binary.op)?;
        if matches!(binary.op, BinOp::And(_)) && (has_let(&binary.left) || has_let(&binary.right)) {
            return None;
        }
        let rule = format!("`{}` instead", other.to_token_stream());
        let switch = self.add(&rule, original, line);
        let ExprBinary { left, op, right, .. } = binary;
        // Operands in parentheses: `a as u8 <= b` may be written without, but `a as u8 < b` may not.
        Some(parse_quote!((if #switch { (#left) #other (#right) } else { (#left) #op (#right) })))
    }

    /// `!a` becomes `a`; other operators stay.
    fn unary(&mut self, unary: &ExprUnary, original: &Expr, line: usize) -> Option<Expr> {
        if !matches!(unary.op, UnOp::Not(_)) {
            return None;
        }
        let switch = self.add("no `!`", original, line);
        let inner = &unary.expr;
        Some(parse_quote!((if #switch { #inner } else { !#inner })))
    }
}

/// Constant functions cannot call the switch, and tests are not to be tested.
impl VisitMut for Mutator<'_> {
    fn visit_item_mod_mut(&mut self, item: &mut ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit_mut::visit_item_mod_mut(self, item);
        }
    }

    fn visit_item_fn_mut(&mut self, item: &mut ItemFn) {
        if item.sig.constness.is_none() && !is_for_tests(&item.attrs) {
            let name = item.sig.ident.clone();
            self.in_function(&name, |this| visit_mut::visit_block_mut(this, &mut item.block));
        }
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut ImplItemFn) {
        // Text for people is not part of the protocol.
        if item.sig.constness.is_none() && item.sig.ident != "fmt" && !is_for_tests(&item.attrs) {
            let name = item.sig.ident.clone();
            self.in_function(&name, |this| visit_mut::visit_block_mut(this, &mut item.block));
        }
    }

    // From here on: places where no call may stand, or where an expression is no condition.
    fn visit_item_const_mut(&mut self, _: &mut ItemConst) {}

    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}

    fn visit_item_static_mut(&mut self, _: &mut ItemStatic) {}

    fn visit_type_mut(&mut self, _: &mut syn::Type) {}

    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}

    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}

    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let (original, line) = (expr.clone(), expr.span().start().line);
        visit_mut::visit_expr_mut(self, expr);
        let changed = match &*expr {
            Expr::Binary(binary) => self.binary(binary, &original, line),
            Expr::Unary(unary) => self.unary(unary, &original, line),
            _ => None,
        };
        if let Some(changed) = changed {
            *expr = changed;
        }
        if let (Expr::If(after), Expr::If(before)) = (expr, &original) {
            self.negate(&mut after.cond, &before.cond, line);
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut syn::Arm) {
        let original = arm.guard.clone();
        visit_mut::visit_arm_mut(self, arm);
        if let (Some((_, after)), Some((_, before))) = (&mut arm.guard, original) {
            let line = before.span().start().line;
            self.negate(after, &before, line);
        }
    }

    fn visit_stmt_mut(&mut self, statement: &mut Stmt) {
        let (original, line) = (statement.clone(), statement.span().start().line);
        visit_mut::visit_stmt_mut(self, statement);
        let Stmt::Expr(expr, Some(_)) = &original else { return };
        if is_deletable(expr) {
            let switch = self.add("deletion", expr, line);
            *statement = parse_quote!(if !#switch { #statement });
        }
    }
}

/// The replacement of an operator.
fn other(op: &BinOp) -> Option<BinOp> {
    Some(match op {
        BinOp::Lt(_) => parse_quote!(<=),
        BinOp::Le(_) => parse_quote!(<),
        BinOp::Gt(_) => parse_quote!(>=),
        BinOp::Ge(_) => parse_quote!(>),
        BinOp::Eq(_) => parse_quote!(!=),
        BinOp::Ne(_) => parse_quote!(==),
        BinOp::Add(_) => parse_quote!(-),
        BinOp::Sub(_) => parse_quote!(+),
        BinOp::And(_) => parse_quote!(||),
        BinOp::Or(_) => parse_quote!(&&),
        _ => return None,
    })
}

/// Whether another rule has already changed the outermost operator.
fn is_changed_itself(condition: &Expr) -> bool {
    match condition {
        Expr::Binary(binary) => other(&binary.op).is_some(),
        Expr::Unary(unary) => matches!(unary.op, UnOp::Not(_)),
        Expr::Paren(inner) => is_changed_itself(&inner.expr),
        _ => false,
    }
}

/// Whether a condition binds names: then it cannot be negated as an expression.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

/// Whether a statement can be removed without leaving a name undefined or a path without a value.
fn is_deletable(expr: &Expr) -> bool {
    match expr {
        Expr::Try(inner) => is_deletable(&inner.expr),
        Expr::Assign(assign) => !matches!(*assign.left, Expr::Path(_) | Expr::Infer(_) | Expr::Tuple(_)),
        Expr::Binary(binary) => is_compound_assignment(&binary.op),
        Expr::MethodCall(_) | Expr::Call(_) => true,
        _ => false,
    }
}

/// `a += b` and similar.
fn is_compound_assignment(op: &BinOp) -> bool {
    other(op).is_none() && op.to_token_stream().to_string().ends_with('=')
}

/// Attributes as token text: `#[test]` and `#[cfg(test)]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.meta.to_token_stream().to_string();
        text == "test" || text == "cfg (test)"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(code: &str) -> Vec<String> {
        let mut mutants = Vec::new();
        let text = format!("fn f() {{ {code} }}");
        let changed = file(&text, "a.rs", &mut mutants).unwrap();
        syn::parse_file(&changed).unwrap();
        mutants.iter().map(|mutant| format!("{} of {}", mutant.rule, mutant.original)).collect()
    }

    #[test]
    fn each_rule_applies_where_it_should() {
        let cases: [(&str, &[&str]); 14] = [
            ("a < b", &["`<=` instead of a < b"]),
            ("a == b", &["`!=` instead of a == b"]),
            ("x(a + 1)", &["`-` instead of a + 1"]),
            ("a && b", &["`||` instead of a && b"]),
            ("!a", &["no `!` of ! a"]),
            ("if a.b() { c }", &["negation of a . b ()"]),
            ("if !a { c }", &["no `!` of ! a"]),
            ("if let Some(a) = b && c.d { e }", &[]),
            ("match a { b if c.d() => e, _ => f }", &["negation of c . d ()"]),
            ("self.a(); b", &["deletion of self . a ()"]),
            ("self.a = 1; b", &["deletion of self . a = 1"]),
            ("self.a += 1; b", &["deletion of self . a += 1"]),
            ("a = 1; b", &[]),
            ("return; b", &[]),
        ];
        for (code, expected) in cases {
            assert_eq!(rules(code), expected, "{code}");
        }
    }

    #[test]
    fn tests_constants_and_types_are_left_alone() {
        let texts = [
            "const A: u8 = 1 + 1;",
            "const fn a() -> u8 { 1 + 1 }",
            "#[cfg(test)] mod tests { fn a() -> u8 { 1 + 1 } }",
            "fn a(b: [u8; 1 + 1]) {}",
            "impl fmt::Display for A { fn fmt(&self) { self.b(); } }",
        ];
        for text in texts {
            let mut mutants = Vec::new();
            file(text, "a.rs", &mut mutants).unwrap();
            assert!(mutants.is_empty(), "{text}: {mutants:?}");
        }
    }
}
