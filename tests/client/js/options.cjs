// Compare the options that methods check with their types: node options.cjs TYPESCRIPT. Prints one line per difference.
const fs = require("node:fs")
const path = require("node:path")
const ts = require(process.argv[2])

const file = path.join(__dirname, "../../../clients/js/topics.js")
const text = fs.readFileSync(file, "utf8")
const table = text.slice(text.indexOf("const CALL = "), text.indexOf("/**\n * Return options."))
const OPTIONS = new Function(`${table}; return OPTIONS`)()

const settings = { allowJs: true, checkJs: true, strict: true, noEmit: true, types: [], target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.NodeNext }
const program = ts.createProgram([file], { ...settings, lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"] })
const types = program.getTypeChecker()
const prefixes = { Topics: "", Job: "job.", Socket: "socket." }
const names = ["options", "which", "config", "held", "position", "settings", "timing"]

for (const made of program.getSourceFile(file).statements.filter(ts.isClassDeclaration)) {
  for (const member of made.members) {
    const isConstructor = ts.isConstructorDeclaration(member)
    if (!isConstructor && !(ts.isMethodDeclaration(member) && ts.isIdentifier(member.name))) continue
    const name = isConstructor ? `new ${made.name.text}` : `${prefixes[made.name.text] ?? `${made.name.text}.`}${member.name.text}`
    for (const parameter of member.parameters.filter((each) => names.includes(each.name.text))) {
      const typed = types.getPropertiesOfType(types.getNonNullableType(types.getTypeAtLocation(parameter))).map((each) => each.name)
      const known = new Set(OPTIONS[name])
      for (const option of typed) if (!known.delete(option)) console.log(`${name} refuses ${option}`)
      for (const option of known) console.log(`${name} has no type for ${option}`)
      if (name in OPTIONS) OPTIONS[name].compared = true
    }
  }
}
for (const [name, known] of Object.entries(OPTIONS)) {
  if (!known.compared && !["record", "config", "commit", "a topic of watch"].includes(name)) console.log(`${name} was not compared`)
}
