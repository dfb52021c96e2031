//! Whether a reply of success to Complete really is one.
//!
//! S3 sends the status before it knows the outcome, then white space, then the result or an error document. The SDK's
//! parser takes a result that is cut off in the middle for a whole one, and knows no error behind leading white space.

use aws_sdk_s3::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;

/// Refuses a reply of success whose body isn't one whole result element.
#[derive(Debug)]
pub(super) struct CompleteReply;

impl Intercept for CompleteReply {
    fn name(&self) -> &'static str {
        "CompleteReply"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // The body is in memory only now: before the deserialization it is a stream.
        let reply = context.response();
        let whole = reply.body().bytes().is_some_and(is_whole_result);
        if reply.status().is_success() && !whole {
            return Err("the reply holds no whole CompleteMultipartUploadResult".into());
        }
        Ok(())
    }
}

/// Whether the document's root is a result element that is closed at its end.
fn is_whole_result(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    let mut text = text.trim();
    if let Some(tail) = text.strip_prefix("<?xml") {
        let Some((_, tail)) = tail.split_once("?>") else { return false };
        text = tail.trim_start();
    }
    text.starts_with("<CompleteMultipartUploadResult") && text.ends_with("</CompleteMultipartUploadResult>")
}

#[cfg(test)]
mod tests {
    use super::is_whole_result;

    #[test]
    fn only_a_whole_result_is_one() {
        let result = "<CompleteMultipartUploadResult xmlns=\"x\"><ETag>1</ETag></CompleteMultipartUploadResult>";
        let declared = format!("<?xml version=\"1.0\"?>\n\n   {result}\n");
        for whole in [result, &declared, &format!("  \n{declared}")] {
            assert!(is_whole_result(whole.as_bytes()), "{whole}");
        }
        for broken in [
            "",
            "   ",
            "<?xml version=\"1.0\"?>",
            "<?xml version",
            &declared[..declared.len() - 5],
            "<Error><Code>InternalError</Code></Error>",
            "<?xml version=\"1.0\"?>\n<Error></Error>",
            "<html>sign in</html>",
            "\u{fffd}",
        ] {
            assert!(!is_whole_result(broken.as_bytes()), "{broken}");
        }
        assert!(!is_whole_result(b"\xff"));
    }
}
