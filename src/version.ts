import { readFileSync } from 'node:fs'

const file = new URL(
  import.meta.url.endsWith('.ts') ? '../package.json' : '../../package.json',
  import.meta.url,
)

/** Version of the service, as its package names it. */
export const version: string = (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
