//! Completion in bash, which breaks words at `:` and `=`: the script puts the pieces together again, and
//! gets what follows the last break.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::engine::complete;
use clap_complete::env::EnvCompleter;

use crate::config::secret::{MachineSecrets, SecretSource as _};

/// Environment variable with the characters at which this bash breaks words.
const BREAKS: &str = "PENSTOCK_WORDBREAKS";

const SCRIPT: &str = r#"_penstock() {
    local line=$COMP_LINE words=() word i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i > 0)) && [[ -n $line && $line != [[:space:]]* ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
        line=${line#"${line%%[![:space:]]*}"}
        line=${line#"$word"}
    done
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(@VARIABLE=bash @BREAKS="$COMP_WORDBREAKS" @COMPLETER -- "${words[@]}" 2> /dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -o bashdefault -o default -F _penstock @PROGRAM
"#;

#[derive(Debug)]
pub(super) struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        _: &str,
        program: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let parts =
            [("@VARIABLE", variable), ("@BREAKS", BREAKS), ("@COMPLETER", completer), ("@PROGRAM", program)];
        let script = parts.iter().fold(SCRIPT.to_owned(), |script, (part, text)| script.replace(part, text));
        out.write_all(script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let last = words.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let breaks = MachineSecrets.env(BREAKS).unwrap_or_default();
        let begun = before_break(&last, &breaks);
        let index = words.len().saturating_sub(1);
        for candidate in complete(command, words, index, folder)? {
            let text = candidate.get_value().to_string_lossy();
            writeln!(out, "{}", text.strip_prefix(begun).unwrap_or(&text))?;
        }
        Ok(())
    }
}

/// The part of a word that bash leaves as it is: up to the last `:` or `=` at which it breaks words.
fn before_break<'a>(word: &'a str, breaks: &str) -> &'a str {
    let at = word.rfind(|character| matches!(character, ':' | '=') && breaks.contains(character));
    &word[..at.map_or(0, |at| at + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_gets_what_follows_the_last_break() {
        assert_eq!(before_break("qwen/http://10.0.0.1:80", " =:"), "qwen/http://10.0.0.1:");
        assert_eq!(before_break("qwen/http://10.0.0.1:80", " ="), "");
        assert_eq!(before_break("--tenant=re", " =:"), "--tenant=");
        assert_eq!(before_break("chat", " =:"), "");
    }
}
