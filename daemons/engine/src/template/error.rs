/// Why a prompt could not be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("the model's chat template does not compile: line {line}: {detail}")]
    Syntax { line: usize, detail: String },
    #[error("control token {text:?} is a single character: texts cannot be kept from forging it")]
    Unguardable { text: String },
    #[error("{what} is not JSON: {detail}")]
    NotJson { what: &'static str, detail: String },
    #[error("{what} must be {wanted}")]
    WrongShape { what: String, wanted: &'static str },
    #[error("{what} has the type {part_type:?}: this model takes text only")]
    NotText { what: String, part_type: String },
    /// The template called `raise_exception`.
    #[error("the model's chat template refuses these messages: {message}")]
    Refused { message: String },
    #[error("the model's chat template failed on these messages: line {line}: {detail}")]
    Failed { line: usize, detail: String },
    #[error("the model's chat template took too long over these messages (line {line})")]
    OutOfFuel { line: usize },
}

impl TemplateError {
    /// Whether another request can succeed where this one failed: an answer of 400, not 500.
    pub fn is_clients(&self) -> bool {
        !matches!(self, Self::Syntax { .. } | Self::Unguardable { .. })
    }
}
