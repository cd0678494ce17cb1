// Writes docs/configuration.md from the schema of the configuration; run with the project's Node
// (npm run docs:configuration).
import { writeFileSync } from 'node:fs'
import { readArguments } from '../src/programs/arguments.ts'
import { documentConfig } from '../src/config.ts'

readArguments(
  { usage: 'npm run docs:configuration     writes docs/configuration.md from src/config.ts' },
  () => undefined,
)

writeFileSync(new URL('../docs/configuration.md', import.meta.url), documentConfig())
