/**
 * The programs of a Kubernetes cluster, built from their Go modules into the cache, because modules
 * are available where binaries are not. As a program this file builds missing programs and prints
 * their folder. CI runs it beside tests that do not need them, and after the build of Temporal's
 * server, for which all tests wait: side by side each build takes twice as long.
 */
import { execFile } from 'node:child_process'
import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { configFromEnvironment } from '../src/config.ts'
import { makeOnce, thriftyGo } from '../src/embedded/go-build.ts'
import { leash } from '../src/embedded/leash.ts'
import { logTail } from '../src/embedded/server-log.ts'
import { findTemporalProgram } from '../src/embedded/temporal-program.ts'
import { openLog } from '../src/observability/log.ts'

const run = promisify(execFile)

/** The newest release that builds with Go 1.26. */
const kubernetesVersion = 'v1.36.3'
const etcdVersion = 'v3.6.16'
const kwokVersion = 'v0.8.0'

const kubernetesCommands = [
  'kube-apiserver',
  'kube-controller-manager',
  'kube-scheduler',
  'kubelet',
  'kubectl',
]
/** The behaviour of fake nodes and their Pods, as kwok publishes it. */
const publishedStages = [
  'node/fast/node-initialize',
  'node/heartbeat-with-lease/node-heartbeat-with-lease',
  'pod/fast/pod-ready',
  'pod/fast/pod-delete',
]

/**
 * The limit for a cluster's start, in ms. On an empty machine the start waits for the build of
 * Kubernetes, which took 607 s beside other tests.
 */
export const kubernetesStartMs = 1_800_000

/** The folder of the built programs. */
export const kubernetesFolder = (): string =>
  join(configFromEnvironment().cacheDir, 'kubernetes', kubernetesVersion)

/**
 * The folder of `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubelet`,
 * `kubectl`, `etcd`, `kwok` and `stages.yaml`, built where it is missing: 4 minutes on two idle
 * cores, with 3.5 GB of the cache's disk meanwhile and 0.5 GB after. Concurrent callers build once.
 * @throws Error with the end of the compiler's output
 */
export const buildKubernetes = async (say: (progress: string) => void = toStandardError): Promise<string> => {
  const built = kubernetesFolder()
  return makeOnce(
    built,
    () => say('another process builds Kubernetes; waiting for it'),
    () =>
      build(
        mkdtempSync(join(dirname(built), 'build-')),
        built,
        configFromEnvironment().childEnvironment,
        say,
      ),
  )
}

const toStandardError = (progress: string): void => void process.stderr.write(`${progress}\n`)

const build = async (
  temporary: string,
  target: string,
  environment: Readonly<Record<string, string>>,
  say: (progress: string) => void,
): Promise<void> => {
  const path = `${environment.PATH ?? '/usr/bin:/bin'}:/usr/local/go/bin`
  const go: Record<string, string> = {
    ...environment,
    PATH: path,
    ...thriftyGo.environment,
    CGO_ENABLED: '0',
    // Without -modcacherw the module folders would be read-only, and only root could remove them.
    GOFLAGS: '-mod=mod -modcacherw -buildvcs=false',
    GOMODCACHE: join(temporary, 'modules'),
    GOCACHE: join(temporary, 'objects'),
    GOTMPDIR: join(temporary, 'scratch'),
  }
  const programs = join(temporary, 'programs')
  const log = join(temporary, 'build.log')
  for (const name of ['modules', 'objects', 'scratch', 'programs']) mkdirSync(join(temporary, name))
  const startedAt = Date.now()
  const minutes = (): string => new Date(Date.now() - startedAt).toISOString().slice(14, 19)
  /**
   * Builds packages in a module of their own, so that programs do not raise each other's versions.
   */
  const compile = async (
    name: string,
    module: string,
    linkerFlags: string,
    packages: readonly string[],
  ): Promise<void> => {
    const directory = join(temporary, name)
    mkdirSync(directory)
    writeFileSync(join(directory, 'go.mod'), module)
    const tell = (): void => say(`building ${name}, needed once: ${minutes()}`)
    tell()
    const ticking = setInterval(tell, 15_000)
    try {
      // The leash ends the compilers with this process; otherwise they would work on for minutes.
      const compiler = await leash({
        command: [
          '/usr/bin/env',
          'go',
          'build',
          ...thriftyGo.flags,
          '-trimpath',
          '-ldflags',
          `-s -w ${linkerFlags}`,
          '-o',
          `${programs}/`,
          ...packages,
        ],
        environment: go,
        directory,
        logFile: log,
        softSignal: 'TERM',
        patienceSeconds: 1,
      })
      const code = await compiler.ended
      if (code !== 0)
        throw new Error(
          `${name} could not be built: go build ended with code ${code} (Go 1.26 or newer?)\n${logTail(log)}`,
        )
    } finally {
      clearInterval(ticking)
    }
  }
  const download = async (module: string): Promise<{ GoMod: string; Dir: string }> => {
    const { stdout } = await run('go', ['mod', 'download', '-json', module], {
      env: go,
      cwd: temporary,
      timeout: 600_000,
    })
    return JSON.parse(stdout) as { GoMod: string; Dir: string }
  }
  try {
    say(`fetching Kubernetes ${kubernetesVersion}`)
    const kubernetes = await download(`k8s.io/kubernetes@${kubernetesVersion}`)
    await compile(
      'kubernetes',
      kubernetesModule(readFileSync(kubernetes.GoMod, 'utf8')),
      versionFlags(),
      kubernetesCommands.map((name) => `k8s.io/kubernetes/cmd/${name}`),
    )
    await compile(
      'etcd',
      `module build\n\ngo 1.26.0\n\nrequire go.etcd.io/etcd/server/v3 ${etcdVersion}\n`,
      '',
      ['go.etcd.io/etcd/server/v3'],
    )
    // The program's name is the last path element that is not a version.
    renameSync(join(programs, 'server'), join(programs, 'etcd'))
    await compile('kwok', `module build\n\ngo 1.26.0\n\nrequire sigs.k8s.io/kwok ${kwokVersion}\n`, '', [
      'sigs.k8s.io/kwok/cmd/kwok',
    ])
    const kwok = await download(`sigs.k8s.io/kwok@${kwokVersion}`)
    for (const stage of publishedStages)
      appendFileSync(
        join(programs, 'stages.yaml'),
        `${readFileSync(join(kwok.Dir, 'kustomize', 'stage', `${stage}.yaml`), 'utf8')}\n---\n`,
      )
    renameSync(programs, target)
    say(`Kubernetes ${kubernetesVersion} is built: ${minutes()}`)
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}

/**
 * Kubernetes' own module refers to its parts by folders of its repository, so Go refuses to install
 * it from outside. The parts are published as modules too, under v0, and these replace the folders.
 */
const kubernetesModule = (goMod: string): string => {
  const own = goMod.split('\n').filter((line) => /^(go|godebug) /.test(line))
  const parts = [...goMod.matchAll(/^\s*(k8s\.io\/[\w-]+) => \.\/staging/gm)].map(
    ([, part = '']) => `\t${part} => ${part} ${kubernetesVersion.replace(/^v1/, 'v0')}`,
  )
  return [
    'module build',
    ...own,
    `require k8s.io/kubernetes ${kubernetesVersion}`,
    'replace (',
    ...parts,
    ')',
    '',
  ].join('\n')
}

/**
 * The version in the answer of `/version` and in the kubelet's report. Unset it is v0.0.0, which
 * clients refuse as too old.
 */
const versionFlags = (): string => {
  const [major = '', minor = ''] = kubernetesVersion.slice(1).split('.')
  const values = {
    gitVersion: kubernetesVersion,
    gitMajor: major,
    gitMinor: minor,
    gitTreeState: 'clean',
    gitCommit: 'module',
  }
  return ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version']
    .flatMap((place) => Object.entries(values).map(([name, value]) => `-X ${place}.${name}=${value}`))
    .join(' ')
}

if (process.argv[1] === import.meta.filename) {
  const { cacheDir, temporalBinary, childEnvironment } = configFromEnvironment()
  await findTemporalProgram({
    named: temporalBinary,
    cacheDir,
    environment: childEnvironment,
    log: openLog('warn'),
    onProgress: () => {},
  })
  process.stdout.write(`${await buildKubernetes()}\n`)
}
