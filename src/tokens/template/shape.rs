//! Template shape: the form in which a chat template wants the content of messages, text or a list
//! of parts. Engines look for a loop over the content, and give all content in the one form that
//! they find. The gateway does the same.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};

/// Whether the template loops over the parts of a message's content.
pub(super) fn takes_parts(template: &Stmt<'_>) -> bool {
    let mut found = ContentLoops::default();
    found.statement(template, None);
    let lists = aliases("messages", &found.sets);
    let is_list = |expr: &Expr<'_>| lists.iter().any(|name| is_of(expr, name, None));
    let messages: Vec<&str> = found
        .loops
        .iter()
        .filter(|found| is_list(&found.statement.iter))
        .filter_map(|found| name(&found.statement.target))
        .collect();
    let is_content = |expr: &Expr<'_>| messages.iter().any(|message| is_of(expr, message, Some("content")));
    found.loops.iter().any(|FoundLoop { statement, within }| {
        if is_content(&statement.iter) {
            return true;
        }
        let Some(list) = name(&statement.iter) else { return false };
        match within {
            None => list == "content",
            Some(index) => found.given_content(found.macros[*index], &is_content).contains(list),
        }
    })
}

/// A statement that sets a variable.
struct TemplateAssignment<'a, 'b> {
    target: &'b Expr<'a>,
    value: &'b Expr<'a>,
}

/// A loop of the template.
struct FoundLoop<'a, 'b> {
    statement: &'b ForLoop<'a>,
    /// Index of the macro around it.
    within: Option<usize>,
}

/// A call of a macro or function by its name.
struct FoundCall<'a, 'b> {
    callee: &'b str,
    args: &'b [CallArg<'a>],
}

/// The statements that decide the shape.
#[derive(Default)]
struct ContentLoops<'a, 'b> {
    loops: Vec<FoundLoop<'a, 'b>>,
    sets: Vec<TemplateAssignment<'a, 'b>>,
    macros: Vec<&'b Macro<'a>>,
    calls: Vec<FoundCall<'a, 'b>>,
}

impl<'a, 'b> ContentLoops<'a, 'b> {
    fn all(&mut self, body: &'b [Stmt<'a>], within: Option<usize>) {
        for statement in body {
            self.statement(statement, within);
        }
    }

    fn statement(&mut self, statement: &'b Stmt<'a>, within: Option<usize>) {
        match statement {
            Stmt::Template(template) => self.all(&template.children, within),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(one) => {
                self.loops.push(FoundLoop { statement: one, within });
                self.expression(&one.iter);
                self.all(&one.body, within);
                self.all(&one.else_body, within);
            }
            Stmt::IfCond(one) => {
                self.expression(&one.expr);
                self.all(&one.true_body, within);
                self.all(&one.false_body, within);
            }
            Stmt::WithBlock(one) => self.all(&one.body, within),
            Stmt::Set(one) => {
                self.sets.push(TemplateAssignment { target: &one.target, value: &one.expr });
                self.expression(&one.expr);
            }
            Stmt::SetBlock(one) => self.all(&one.body, within),
            Stmt::FilterBlock(one) => self.all(&one.body, within),
            Stmt::AutoEscape(one) => self.all(&one.body, within),
            Stmt::Block(one) => self.all(&one.body, within),
            Stmt::Macro(one) => {
                self.macros.push(one);
                let index = self.macros.len() - 1;
                self.all(&one.body, Some(index));
            }
            Stmt::CallBlock(one) => self.all(&one.macro_decl.body, within),
            _ => {}
        }
    }

    /// Collects the calls in an expression, at any depth.
    fn expression(&mut self, expr: &'b Expr<'a>) {
        match expr {
            Expr::Call(call) => {
                if let Expr::Var(callee) = &call.expr {
                    self.calls.push(FoundCall { callee: callee.id, args: &call.args });
                } else {
                    self.expression(&call.expr);
                }
                self.arguments(&call.args);
            }
            Expr::UnaryOp(one) => self.expression(&one.expr),
            Expr::BinOp(one) => {
                self.expression(&one.left);
                self.expression(&one.right);
            }
            Expr::IfExpr(one) => {
                self.expression(&one.test_expr);
                self.expression(&one.true_expr);
                one.false_expr.iter().for_each(|other| self.expression(other));
            }
            Expr::Filter(one) => {
                one.expr.iter().for_each(|inner| self.expression(inner));
                self.arguments(&one.args);
            }
            Expr::Test(one) => self.expression(&one.expr),
            Expr::GetAttr(one) => self.expression(&one.expr),
            Expr::GetItem(one) => self.expression(&one.expr),
            Expr::Slice(one) => self.expression(&one.expr),
            Expr::Compare(one) => {
                self.expression(&one.expr);
                one.ops.iter().for_each(|op| self.expression(&op.expr));
            }
            Expr::List(one) => one.items.iter().for_each(|item| self.expression(item)),
            _ => {}
        }
    }

    fn arguments(&mut self, args: &'b [CallArg<'a>]) {
        for arg in args {
            let (CallArg::Pos(expr)
            | CallArg::Kwarg(_, expr)
            | CallArg::PosSplat(expr)
            | CallArg::KwargSplat(expr)) = arg;
            self.expression(expr);
        }
    }

    /// The parameters of a macro that some call fills with a message's content.
    fn given_content(&self, of: &Macro<'a>, is_content: &dyn Fn(&Expr<'_>) -> bool) -> BTreeSet<&'b str>
    where
        'a: 'b,
    {
        let mut given = BTreeSet::new();
        for call in self.calls.iter().filter(|call| call.callee == of.name) {
            let mut place = 0;
            for arg in call.args {
                match arg {
                    CallArg::Pos(expr) => {
                        given.extend(of.args.get(place).and_then(param).filter(|_| is_content(expr)));
                        place += 1;
                    }
                    CallArg::Kwarg(key, expr) => {
                        given.extend(
                            of.args.iter().filter_map(param).find(|one| one == key && is_content(expr)),
                        );
                    }
                    CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {}
                }
            }
        }
        given
    }
}

fn param<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

fn name<'a>(expr: &'a Expr<'_>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// The name, and every name that is set to its value or to a part of its value.
fn aliases<'b>(root: &'b str, sets: &[TemplateAssignment<'_, 'b>]) -> Vec<&'b str> {
    let mut names = vec![root];
    let mut at = 0;
    while let Some(known) = names.get(at).copied() {
        for TemplateAssignment { target, value } in sets {
            if let Some(target) = name(target).filter(|target| !names.contains(target))
                && is_of(value, known, None)
            {
                names.push(target);
            }
        }
        at += 1;
    }
    names
}

/// Whether the expression is the variable (or its field), also filtered or sliced.
fn is_of(expr: &Expr<'_>, variable: &str, field: Option<&str>) -> bool {
    match expr {
        Expr::Filter(one) => one.expr.as_ref().is_some_and(|inner| is_of(inner, variable, field)),
        Expr::Test(one) => is_of(&one.expr, variable, field),
        Expr::Slice(one) => is_of(&one.expr, variable, field),
        Expr::Var(var) => field.is_none() && var.id == variable,
        Expr::GetAttr(one) => field == Some(one.name) && name(&one.expr) == Some(variable),
        Expr::GetItem(one) => {
            let Expr::Const(key) = &one.subscript_expr else { return false };
            field.is_some() && key.value.as_str() == field && name(&one.expr) == Some(variable)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::machinery::parse;

    use super::*;

    #[test]
    fn a_loop_over_the_content_wants_parts() {
        for (template, parts) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
            ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", true),
            ("{% for m in messages %}{% for p in m.content | list %}{% endfor %}{% endfor %}", true),
            (
                "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}",
                true,
            ),
            ("{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}", false),
            ("{% for content in messages %}{% for p in content %}{% endfor %}{% endfor %}", true),
            (
                "{% macro say(x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ say(m.content) }}{% endfor %}",
                true,
            ),
            (
                "{% macro say(x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ say(m.tools) }}{% endfor %}",
                false,
            ),
            (
                "{% macro say(x) %}{% for p in x %}{% endfor %}{% endmacro %}{% for m in messages %}{% set c = say(x=m.content) ~ '' %}{% endfor %}",
                true,
            ),
            ("{% macro say(content) %}{% for p in content %}{% endfor %}{% endmacro %}", false),
        ] {
            let parsed = parse(template, "t", Default::default()).unwrap();
            assert_eq!(takes_parts(&parsed), parts, "{template}");
        }
    }
}
