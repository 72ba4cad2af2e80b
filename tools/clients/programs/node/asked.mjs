// What each program asks, and how it says what went well.
export const [url, model] = process.argv.slice(2);
export const ask = "How warm is it in Oldford?";
export const messages = [{ role: "user", content: ask }];

export const tried = (what, holds) => {
  if (!holds) throw new Error(what);
  console.log("ok", what);
};

// A prompt that is too long must come back as an error that says so.
export const triedTooLong = async (asked, what = "too long") => {
  const said = await asked("garden ".repeat(30_000)).then(() => "an answer", String);
  tried(what, /maximum context length is|prompt is too long/.test(said) || console.log(said));
};
