import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { inspect } from 'node:util'
import { describe, expect, test } from '@jest/globals'
import fc from './support/fast-check.ts'
import pg from 'pg'
import {
  ConfigError,
  documentConfig,
  formatAddress,
  parseConfig,
  printConfig,
  variableName,
  withoutPassword,
} from '../src/config.ts'
import type { HostFacts } from '../src/config.ts'

const host: HostFacts = {
  uid: 1000,
  home: '/home/ada',
  hostname: 'engine',
  xdgDataHome: undefined,
  xdgCacheHome: undefined,
  workingDirectory: '/home/ada/project',
  isDirectory: (path) => !path.includes('absent'),
  isExecutable: (path) => !path.includes('absent'),
  readFile: (path) => {
    const text = {
      '/run/secrets/token': 'from-a-file\r\n\n',
      '/run/secrets/bad': 'two words\n',
      '/run/secrets/empty': '\n',
    }[path]
    if (text === undefined) throw Object.assign(new Error(`ENOENT: ${path}`), { code: 'ENOENT' })
    return text
  },
}
const problemsOf = (environment: Record<string, string>): readonly string[] => {
  try {
    parseConfig(environment, host)
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.problems
    throw error
  }
}
const fields = Object.keys(parseConfig({}, host)).filter(
  (field) => !['childEnvironment', 'credentialVariables', 'tracesEndpoint', 'failpoints'].includes(field),
)
const names = [...documentConfig().matchAll(/^\| `(SERVICE_\w+)`/gm)].map(([, name = '']) => name)

/** A value of each variable that is refused, and what the remedy must say. */
const refused: [name: string, value: string, says: RegExp][] = [
  ['SERVICE_LISTEN_ADDRESS', 'localhost', /HOST:PORT/],
  ['SERVICE_LISTEN_ADDRESS', '127.0.0.1:65536', /65535/],
  ['SERVICE_LISTEN_ADDRESS', 'a b:80', /HOST:PORT/],
  ['SERVICE_API_PREFIX', 'api', /\/api/],
  ['SERVICE_API_PREFIX', '/api/', /\/api/],
  ['SERVICE_API_TOKEN', 'two words', /openssl/],
  ['SERVICE_ALLOWED_ORIGINS', 'https://a.example/path', /origin/],
  ['SERVICE_ALLOWED_ORIGINS', '*', /origin/],
  ['SERVICE_ALLOWED_HOSTS', 'http://a', /host name/],
  ['SERVICE_ADMIN_ADDRESS', '9090', /HOST:PORT/],
  ['SERVICE_RELAY_ADDRESS', 'worker-1', /HOST:PORT/],
  ['SERVICE_RELAY_ADDRESS', '0.0.0.0:7300', /others can reach/],
  ['SERVICE_RELAY_ADDRESS', '[::]:7300', /others can reach/],
  ['SERVICE_LOCAL_STORAGE_ROOT', '/absent', /existing directory/],
  ['SERVICE_DATABASE_URL', 'mysql://a/b', /postgres:\/\//],
  ['SERVICE_DATABASE_URL', 'postgres://host:5432', /database name/],
  ['SERVICE_DATABASE_URL', 'postgres://ada:pa/ss@host:5432/orrery', /SERVICE_DATABASE_PASSWORD/],
  ['SERVICE_DATABASE_URL', 'postgres://ada:100%@host:5432/orrery', /SERVICE_DATABASE_PASSWORD/],
  ['SERVICE_DATABASE_PASSWORD', 'a\nb', /control/],
  ['SERVICE_TEMPORAL_ADDRESS', 'temporal:0', /1 to 65535/],
  ['SERVICE_TEMPORAL_NAMESPACE', 'a/b', /default/],
  ['SERVICE_TEMPORAL_TASK_QUEUE', 'a\nb', /control/],
  ['SERVICE_TEMPORAL_BINARY', '/absent', /executable/],
  ['SERVICE_HOST_ID', 'x'.repeat(256), /255/],
  ['SERVICE_SEED_ROOT', 'absent', /existing directory/],
  ['SERVICE_CREDENTIAL_ENVIRONMENT', 'LAB TOKEN', /variable name/],
  ['SERVICE_CREDENTIAL_ENVIRONMENT', 'SERVICE_API_TOKEN', /variable name/],
  ['SERVICE_CREDENTIAL_FOLDERS', '/keys,/absent', /"\/absent".*existing directory/],
  ['SERVICE_DENIED_NETWORKS', '10.0.0.0/33', /network/],
  ['SERVICE_DENIED_NETWORKS', 'intranet', /network/],
  ['SERVICE_ALLOW_LOOPBACK_CONNECTIONS', 'yes', /auto, true or false/],
  ['SERVICE_ALLOW_PROXY_COMMAND', '1', /true or false/],
  ['SERVICE_DISCOVERY_WAIT_SECONDS', '301', /300/],
  ['SERVICE_SITE_PATIENCE_SECONDS', '0', /86400/],
  ['SERVICE_MONITOR_INTERVAL_SECONDS', '1m', /60/],
  ['SERVICE_BODY_LIMIT_BYTES', '1e6', /33554432/],
  ['SERVICE_BODY_LIMIT_BYTES', '0', /1024/],
  ['SERVICE_TASK_VARIABLE_PREFIX', 'SERVICE_', /AKOFLOW_/],
  ['SERVICE_CURRENCY', 'euro', /EUR/],
  ['SERVICE_LOG_LEVEL', 'verbose', /debug/],
]

describe('the configuration', () => {
  test('of an empty environment is the documented default', () => {
    const config = parseConfig({}, host)
    expect(config).toMatchObject({
      listenAddress: { host: '127.0.0.1', port: 8080 },
      adminAddress: { host: '127.0.0.1', port: 0 },
      apiPrefix: '/api',
      dataDir: '/home/ada/.local/share/orrery',
      cacheDir: '/home/ada/.cache/orrery',
      readyFile: '/home/ada/.local/share/orrery/ready.json',
      hostId: 'engine',
      bodyLimitBytes: 32 * 1024 * 1024,
      taskVariablePrefix: 'AKOFLOW_',
      allowedOrigins: [],
    })
    expect(config.apiToken).toBeUndefined()
    expect(Object.isFrozen(config)).toBe(true)
    expect(parseConfig({}, { ...host, uid: 0 })).toMatchObject({
      dataDir: '/var/lib/orrery',
      cacheDir: '/var/cache/orrery',
    })
    expect(parseConfig({}, { ...host, xdgDataHome: '/x/data', xdgCacheHome: '/x/cache' })).toMatchObject({
      dataDir: '/x/data/orrery',
      cacheDir: '/x/cache/orrery',
    })
  })

  test('reads an address with an empty host, a name, or IPv6', () => {
    fc.assert(
      fc.property(
        fc.constantFrom('', '127.0.0.1', 'node-1.lab', '::1'),
        fc.integer({ min: 0, max: 65_535 }),
        (name, port) => {
          const { listenAddress } = parseConfig(
            { SERVICE_LISTEN_ADDRESS: formatAddress({ host: name, port }) },
            host,
          )
          expect(listenAddress).toEqual({ host: name === '' ? '127.0.0.1' : name, port })
        },
      ),
      { seed: 1 },
    )
  })

  test('lets connections lead to this machine with the embedded database only, unless it says so', () => {
    const external = { SERVICE_DATABASE_URL: 'postgres://db/orrery' }
    const allowed = (environment: Record<string, string>) =>
      parseConfig(environment, host).allowLoopbackConnections
    expect([allowed({}), allowed(external)]).toEqual([true, false])
    expect(allowed({ ...external, SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' })).toBe(true)
    expect(allowed({ SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'false' })).toBe(false)
  })

  test('gives the named variables to credential references and no others, and shows their values nowhere', () => {
    const config = parseConfig(
      { LAB_TOKEN: 'hush-hush', OTHER: 'x', SERVICE_CREDENTIAL_ENVIRONMENT: 'LAB_TOKEN,ABSENT' },
      host,
    )
    expect(['LAB_TOKEN', 'OTHER', 'ABSENT'].map((name) => config.credentialVariables.read(name))).toEqual([
      'hush-hush',
      undefined,
      undefined,
    ])
    expect(
      `${printConfig(config)} ${JSON.stringify(config)} ${inspect(config, { depth: null })}`,
    ).not.toContain('hush-hush')
  })

  test('reads every secret from the file that its second variable names, without the line breaks at its end', () => {
    expect(parseConfig({ SERVICE_API_TOKEN_FILE: '/run/secrets/token' }, host).apiToken).toBe('from-a-file')
    expect(parseConfig({ SERVICE_API_TOKEN_FILE: '../../../run/secrets/token' }, host).apiToken).toBe(
      'from-a-file',
    )
    const documented = [...documentConfig().matchAll(/^\| `(SERVICE_\w+)`.* Secret: .*`(\w+)`\. \|$/gm)].map(
      ([, name, file]) => [name, file],
    )
    expect(documented.map(([name]) => name)).toEqual([
      'SERVICE_API_TOKEN',
      'SERVICE_DATABASE_URL',
      'SERVICE_DATABASE_PASSWORD',
      'SERVICE_PROVENANCE_DATABASE_URL',
      'SERVICE_TEMPORAL_CODEC_KEY',
    ])
    for (const [name, file = ''] of documented) {
      expect(file).toBe(`${String(name)}_FILE`)
      expect(problemsOf({ [file]: '/run/secrets/none' })).toEqual([
        `${file}="/run/secrets/none" names a file that cannot be read (ENOENT). Create it, readable by this account`,
      ])
    }
    expect(problemsOf({ SERVICE_API_TOKEN_FILE: '/run/secrets/empty' })).toEqual([
      'SERVICE_API_TOKEN_FILE="/run/secrets/empty" names an empty file. Write the value into it',
    ])
    expect(problemsOf({ SERVICE_API_TOKEN_FILE: '/run/secrets/token', SERVICE_API_TOKEN: 'hush' })).toEqual([
      'SERVICE_API_TOKEN_FILE="/run/secrets/token" is given beside SERVICE_API_TOKEN. Give one of them',
    ])
    const [problem = ''] = problemsOf({ SERVICE_API_TOKEN_FILE: '/run/secrets/bad' })
    expect(problem).toMatch(
      /^SERVICE_API_TOKEN_FILE="\/run\/secrets\/bad", its content, must be 1 to 1024 .*openssl/,
    )
    expect(problem).not.toContain('two words')
    expect(problemsOf({ SERVICE_API_TOKEN_FIEL: 'x' })[0]).toMatch(/SERVICE_API_TOKEN_FILE\?/)
    expect(problemsOf({ SERVICE_LOG_LEVEL_FILE: '/run/secrets/token' })[0]).toMatch(
      /is not a variable of this program/,
    )
  })

  test('takes a database password as it is, and gives it to the client of PostgreSQL', () => {
    fc.assert(
      fc.property(fc.stringMatching(/^[ -~]{1,40}$/), (password) => {
        const environment = {
          SERVICE_DATABASE_URL: 'postgres://ada@db:5432/orrery?sslmode=disable',
          SERVICE_DATABASE_PASSWORD: password,
        }
        const { databaseUrl } = parseConfig(environment, host)
        const client = new pg.Client({ connectionString: databaseUrl })
        expect(client).toMatchObject({ user: 'ada', password, host: 'db', port: 5432, database: 'orrery' })
      }),
      { seed: 5, examples: [['a/b@c:d%e'], ['%2F'], ['p?q#r'], ['$&+ ']] },
    )
    expect(problemsOf({ SERVICE_DATABASE_PASSWORD: 'hush' })).toEqual([
      'SERVICE_DATABASE_PASSWORD=(hidden) is given without SERVICE_DATABASE_URL. Give the URL of ' +
        'that database, or unset the password',
    ])
    for (const url of ['postgres://ada:other@db/orrery', 'postgres://ada@db/orrery?password=other'])
      expect(problemsOf({ SERVICE_DATABASE_URL: url, SERVICE_DATABASE_PASSWORD: 'hush' })).toEqual([
        'SERVICE_DATABASE_PASSWORD=(hidden) is given, and SERVICE_DATABASE_URL holds a password as ' +
          'well. Remove it from the URL',
      ])
  })

  test('treats an empty value as not given', () => {
    expect(parseConfig(Object.fromEntries(names.map((name) => [name, ''])), host)).toEqual(
      parseConfig({}, host),
    )
  })

  test.each(refused)('refuses %s=%j with the remedy', (name, value, says) => {
    const problems = problemsOf({ [name]: value })
    expect(problems).toHaveLength(1)
    expect(problems[0]).toMatch(says)
    expect(
      problems[0]?.startsWith(
        `${name}=${/API_TOKEN|URL|PASSWORD/.test(name) ? '(hidden)' : JSON.stringify(value)} `,
      ),
    ).toBe(true)
  })

  test('names every problem at once', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.constantFrom(...refused), { selector: ([name]) => name, minLength: 1 }),
        (chosen) => {
          const problems = problemsOf({ ...Object.fromEntries(chosen), SERVICE_NO_SUCH_THING_AT_ALL: '1' })
          expect(problems).toHaveLength(chosen.length + 1)
          for (const [name] of chosen)
            expect(problems.filter((line) => line.startsWith(`${name}=`))).toHaveLength(1)
        },
      ),
      { seed: 2 },
    )
  })

  test('refuses an unknown SERVICE_ name and suggests the one that was meant', () => {
    fc.assert(
      fc.property(fc.constantFrom(...names), fc.nat(), fc.constantFrom('drop', 'double'), (name, at, how) => {
        const i = 'SERVICE_'.length + (at % (name.length - 'SERVICE_'.length))
        const wrong =
          how === 'drop'
            ? name.slice(0, i) + name.slice(i + 1)
            : name.slice(0, i) + (name[i] ?? '') + name.slice(i)
        fc.pre(!names.includes(wrong))
        expect(problemsOf({ [wrong]: 'x' })).toEqual([
          `${wrong} is not a variable of this program. Did you mean ${name}?`,
        ])
      }),
      { seed: 3 },
    )
    expect(problemsOf({ SERVICE_XYZZY_QUUX_FROBNICATE_ALL: 'x' })[0]).toMatch(/Unset it/)
    expect(problemsOf({ OTHER_SERVICE_PORT: 'x' })).toEqual([])
  })

  test('never shows a secret, printed or refused', () => {
    const secret = fc.stringMatching(/^[A-Za-z0-9]{12,30}$/)
    fc.assert(
      fc.property(secret, secret, (token, password) => {
        const environment = {
          SERVICE_API_TOKEN: token,
          SERVICE_DATABASE_URL: `postgres://ada:${password}@db:5432/orrery?sslpassword=${password}`,
        }
        const apart = {
          SERVICE_DATABASE_URL: 'postgres://ada@db:5432/orrery',
          SERVICE_DATABASE_PASSWORD: `${password}/@:%`,
        }
        expect(printConfig(parseConfig(apart, host))).not.toContain(password)
        const printed = printConfig(parseConfig(environment, host))
        const refusal = problemsOf({
          SERVICE_API_TOKEN: `${token} `,
          SERVICE_DATABASE_URL: `mysql://ada:${password}@db/x`,
        }).join('\n')
        for (const text of [printed, refusal]) {
          expect(text).not.toContain(token)
          expect(text).not.toContain(password)
        }
        expect(printed).toContain('SERVICE_API_TOKEN=(hidden)')
        expect(printed).toContain('@db:5432/orrery')
      }),
      { seed: 4 },
    )
    expect(withoutPassword('postgres://db/x')).toBe('postgres://db/x')
  })

  test('printed, is an environment that gives the same configuration', () => {
    const environment = {
      SERVICE_ALLOWED_ORIGINS: 'https://a.example,http://localhost:3000',
      SERVICE_API_PREFIX: '/',
      SERVICE_TEMPORAL_ADDRESS: '[::1]:7233',
      SERVICE_DATA_DIR: 'data',
    }
    const config = parseConfig(environment, host)
    expect(config.dataDir).toBe('/home/ada/project/data')
    const printed = Object.fromEntries(
      printConfig(config)
        .split('\n')
        .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
    )
    expect(parseConfig(printed, host)).toEqual(config)
    expect(Object.keys(printed)).toEqual(names)
  })

  test('hands no SERVICE_ variable and no unknown one to the programs it starts', () => {
    const { childEnvironment } = parseConfig(
      {
        PATH: '/bin',
        HOME: '/h',
        SERVICE_API_TOKEN: 'abc',
        AWS_SECRET_ACCESS_KEY: 'k',
        GOPROXY: 'off',
        GOFLAGS: '-x',
        https_proxy: 'http://p',
      },
      host,
    )
    expect(childEnvironment).toEqual({ PATH: '/bin', HOME: '/h', GOPROXY: 'off', https_proxy: 'http://p' })
  })

  test('is documented as it is: docs/configuration.md is made from the schema', () => {
    expect(readFileSync(new URL('../docs/configuration.md', import.meta.url), 'utf8')).toBe(documentConfig())
    expect(names).toEqual([...new Set(names)])
    expect(new Set(names)).toEqual(
      new Set(
        fields
          .concat(
            'apiToken',
            'currency',
            'localStorageRoot',
            'artifactRoot',
            'containerEngine',
            'databaseUrl',
            'databasePassword',
            'provenanceDatabaseUrl',
            'temporalAddress',
            'temporalBinary',
            'temporalCodecKey',
            'seedRoot',
            'vaultKeyFile',
          )
          .map(variableName),
      ),
    )
  })

  test('each range and each word of the document is that of the program', () => {
    const rows = [...documentConfig().matchAll(/^\| `(SERVICE_\w+)` \| [^|]* \| ([^|]+) \|/gm)]
    const taken = (name = '', value: string | number): boolean =>
      problemsOf({ [name]: String(value) }).length === 0
    const ranges = rows.flatMap(([, name, values = '']) => {
      const [, lowest, highest] = /^(\d+) to (\d+)$/.exec(values) ?? []
      return lowest === undefined ? [] : [{ name, lowest: Number(lowest), highest: Number(highest) }]
    })
    expect(ranges.length).toBeGreaterThan(9)
    for (const { name, lowest, highest } of ranges)
      expect([name, [lowest - 1, lowest, highest, highest + 1].map((value) => taken(name, value))]).toEqual([
        name,
        [false, true, true, false],
      ])
    const words = rows.filter(([, , values = '']) => values.startsWith('`'))
    expect(words.length).toBeGreaterThan(4)
    for (const [, name, values = ''] of words)
      for (const [, word = ''] of values.matchAll(/`(\w+)`/g))
        expect([name, word, taken(name, word), taken(name, `${word}x`)]).toEqual([name, word, true, false])
  })

  test('a setting says that nothing reads it yet, exactly where that is so', () => {
    const root = new URL('../', import.meta.url).pathname
    const texts = ['src', 'workflows', 'activities']
      .flatMap((folder) =>
        readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((name) =>
          join(root, folder, name),
        ),
      )
      .filter((file) => file.endsWith('.ts') && !file.endsWith('src/config.ts'))
      .map((file) => readFileSync(file, 'utf8'))
    // `src/config.ts` itself reads it.
    const own = ['SERVICE_CREDENTIAL_ENVIRONMENT']
    const unread = fields
      .concat(
        'localStorageRoot',
        'databaseUrl',
        'databasePassword',
        'temporalAddress',
        'temporalBinary',
        'seedRoot',
        'vaultKeyFile',
      )
      .filter((field) => !texts.some((text) => new RegExp(`\\b${field}\\b`).test(text)))
      .map(variableName)
      .filter((name) => !own.includes(name))
    const admitted = [...documentConfig().matchAll(/^\| `(SERVICE_\w+)`.* Nothing reads it yet\. \|$/gm)].map(
      ([, name]) => name,
    )
    expect(unread.toSorted()).toEqual(admitted.toSorted())
  })
})
