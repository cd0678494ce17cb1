// Writes docs/configuration.md from the schema of the configuration; run with the project's Node (npm run docs:configuration).
import { writeFileSync } from 'node:fs'
import { documentConfig } from '../src/config.ts'

writeFileSync(new URL('../docs/configuration.md', import.meta.url), documentConfig())
