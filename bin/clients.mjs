/**
 * Makes both clients from the API's document:
 *
 *   npm run clients [-- --document FILE]     docs/openapi.json by default
 *
 * The generator for TypeScript needs TypeScript 5, so clients/typescript has a lock and a compiler
 * of its own. The one for Python is in clients/python/.venv. The generated code is not committed.
 */
import { spawnSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { readArguments } from '../src/programs/arguments.ts'

const root = resolve(import.meta.dirname, '..')
const values = readArguments(
  {
    usage: 'npm run clients [-- --document FILE]   makes both clients from docs/openapi.json or FILE',
    options: { document: { type: 'string', default: join(root, 'docs/openapi.json') } },
  },
  (read) => read.values,
)

const run = (folder, program, ...args) => {
  const { status, error, stdout, stderr } = spawnSync(program, args, { cwd: folder, encoding: 'utf8' })
  if (status === 0) return
  process.stderr.write(`${stdout ?? ''}${stderr ?? ''}`)
  throw new Error(`${program} ${args.join(' ')}: ${error?.message ?? `exit code ${status}`}`)
}

/**
 * The document in the form that generators support: one media type for each body and answer, no
 * HEAD, and free values as the empty schema. An archive keeps its type, which the service asks for.
 */
const reduced = (document) => {
  for (const item of Object.values(document.paths)) {
    delete item.head
    for (const operation of Object.values(item)) {
      if (operation.responses === undefined) continue
      for (const content of [operation.requestBody, ...Object.values(operation.responses)]) {
        const types = Object.keys(content?.content ?? {})
        if (types.length === 0) continue
        const type = types.find((one) => one === 'application/json') ?? types[0]
        const generic = /^text\//.test(type)
          ? 'text/plain'
          : /^(application\/(json|zip)|multipart\/form-data)$/.test(type)
            ? type
            : 'application/octet-stream'
        content.content = {
          [type === 'application/x-ndjson' ? 'text/plain' : generic]: content.content[type],
        }
      }
    }
  }
  for (const { content } of Object.values(document.components.responses))
    delete content['application/problem+json']
  const free = (_key, value) =>
    value?.$ref === '#/components/schemas/JsonValue' ? { description: value.description } : value
  delete document.components.schemas.JsonValue
  return JSON.parse(JSON.stringify(document, free))
}

const folder = mkdtempSync(join(tmpdir(), 'orrery-clients-'))
try {
  const document = join(folder, 'openapi.json')
  writeFileSync(document, JSON.stringify(reduced(JSON.parse(readFileSync(values.document, 'utf8')))))

  const typescript = join(root, 'clients/typescript')
  const lock = join(typescript, 'package-lock.json')
  const installed = join(typescript, 'node_modules/.installed-lock.json')
  if (!existsSync(installed) || !readFileSync(installed).equals(readFileSync(lock))) {
    run(typescript, 'npm', 'ci', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error')
    copyFileSync(lock, installed)
  }
  const program = (name) => join(typescript, 'node_modules/.bin', name)
  run(typescript, program('openapi-typescript'), document, '--output', 'src/schema.ts')
  run(typescript, program('tsc'))

  const python = join(root, 'clients/python')
  const environment = join(python, '.venv')
  const wanted = readFileSync(join(python, 'requirements.txt'), 'utf8')
  const had = join(environment, 'requirements.txt')
  if (!existsSync(had) || readFileSync(had, 'utf8') !== wanted) {
    run(python, 'python3', '-m', 'venv', '--clear', '.venv')
    run(python, join(environment, 'bin/pip'), 'install', '--quiet', '-r', 'requirements.txt')
    writeFileSync(had, wanted)
  }
  run(
    python,
    join(environment, 'bin/openapi-python-client'),
    ...['generate', '--path', document, '--output-path', 'orrery_api', '--meta', 'none', '--overwrite'],
    ...['--config', 'generator.yaml', '--fail-on-warning'],
  )
} finally {
  rmSync(folder, { recursive: true, force: true })
}
process.stdout.write('clients/typescript/dist and clients/python are made\n')
