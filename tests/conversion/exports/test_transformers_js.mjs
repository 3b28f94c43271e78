// node transformers_js.mjs < {folder, task, texts, images, options}: what transformers.js makes of a folder
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const library = createRequire(import.meta.url)("@huggingface/transformers");
const { folder, task, texts, images, options } = JSON.parse(readFileSync(0, "utf8"));
library.env.allowRemoteModels = false;
library.env.localModelPath = "/";

const model = await library[`AutoModelFor${task}`].from_pretrained(folder);
let found;
if (images) {
  const shape = [images.length, images[0].length, images[0][0].length, images[0][0][0].length];
  const pixel_values = new library.Tensor("float32", Float32Array.from(images.flat(3)), shape);
  found = { logits: (await model({ pixel_values })).logits.tolist() };
} else {
  const tokenizer = await library.AutoTokenizer.from_pretrained(folder);
  const inputs = await tokenizer(texts, { padding: true });
  found = { input_ids: inputs.input_ids.tolist() };
  if (model.can_generate) found.tokens = (await model.generate({ ...inputs, ...options })).tolist();
  else found.logits = (await model(inputs)).logits.tolist();
}
const plain = (key, value) => (typeof value === "bigint" ? Number(value) : value);
console.log(JSON.stringify(found, plain));
