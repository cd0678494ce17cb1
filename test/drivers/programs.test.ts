import { afterAll, beforeAll, describe, expect, test as always } from '@jest/globals'
import { bytesOfPath } from '../../src/outside-path.ts'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { hash } from 'node:crypto'
import { once } from 'node:events'
import {
  closeSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { answeringEnginesScript, enginesScript } from '../../src/connections/discovery/engines.ts'
import { hostScript, readHost } from '../../src/connections/discovery/host.ts'
import { slurmScript } from '../../src/connections/discovery/slurm.ts'
import { arrayScript, packOf } from '../../src/drivers/runtime/batch/array-script.ts'
import { containerized, insideScript } from '../../src/drivers/runtime/container/driver.ts'
import { launcher } from '../../src/drivers/runtime/container/launcher.ts'
import { roomScript } from '../../src/drivers/runtime/contract/cgroups.ts'
import { taskPath, taskScript } from '../../src/drivers/runtime/contract/task-script.ts'
import { jobScript } from '../../src/drivers/runtime/kubernetes/job.ts'
import * as courier from '../../src/drivers/runtime/kubernetes/courier/scripts.ts'
import { parseSlice, sliceScript } from '../../src/drivers/runtime/remote/slice.ts'
import { wrapper } from '../../src/drivers/runtime/remote/wrapper.ts'
import * as transfer from '../../src/drivers/transfer/scripts.ts'
import { parseTree } from '../../src/drivers/transfer/tree.ts'
import { processesGiven } from '../../src/embedded/processes.ts'
import { assign, call, evaluated, withLastLine } from '../../src/shell/program.ts'
import { quote } from '../../src/shell/quote.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { proved } from '../support/share.ts'
import { plainIntent } from './intent.ts'

/**
 * The programs for the shells of sites: checked, read by every shell that a site may have, and run
 * by them.
 */

const root = join(import.meta.dirname, '../..')
const programs = globSync('src/**/*.sh', { cwd: root }).sort()
/**
 * Every Debian has both; a task's image may have busybox alone, which the tests of containers and
 * Kubernetes run.
 */
const shells = ['dash', 'bash']

const { test } = needs('shellcheck')
test('shellcheck finds nothing', () => {
  expect(programs.length).toBeGreaterThan(25)
  const { stdout } = spawnSync('shellcheck', programs, { cwd: root, encoding: 'utf8' })
  expect(stdout).toBe('')
})

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(runFolder(), 'orrery-programs-'))
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const text = (name: string): string => readFileSync(join(root, 'src/drivers/runtime', name), 'utf8')
/** What comes before a script whose disk takes files, and no bytes. */
const fullDisk = "trap '' XFSZ; ulimit -f 0; "
const hostile = `it's "$HOME" \`id\`\\n; touch bait`

describe.each(shells)('%s', (shell) => {
  let count = 0
  const place = (): string => {
    const at = join(folder, `${shell}-${++count}`)
    for (const name of ['tasks', 'arrays']) mkdirSync(join(at, name), { recursive: true })
    return at
  }
  const run = (
    script: string,
    cwd: string,
    input = '',
    environment: Record<string, string> = {},
  ): { code: number | null; out: string } => {
    const { status, stdout, stderr } = spawnSync(shell, ['-c', script], {
      cwd,
      input,
      encoding: 'latin1',
      env: { PATH: '/usr/bin:/bin', HOME: cwd, ...environment },
    })
    if (stderr !== '') throw new Error(stderr)
    return { code: status, out: stdout }
  }
  const read = (...path: string[]): string => readFileSync(join(...path), 'utf8')

  always('reads every program, and what they are put together to', () => {
    const options = { root: '/r', pack: 'p', tools: true, supervisor: '/bin/sh w f r v 0 m s "$script"' }
    const whole = [
      ...programs.map((name) => readFileSync(join(root, name), 'utf8')),
      ...[wrapper, launcher, roomScript],
      arrayScript([{ script: 'a.b' }], { array: 'one', pack: 'p', folder: '/r', command: 'sh', index: '$I' }),
      jobScript([{ script: 'a.b' }], options),
      ...[
        courier.installScript('/r', '/b'),
        courier.waitScript('/r', 's', '/bin/sh'),
        courier.stayScript('/r'),
      ],
      ...[
        courier.receiveScript('/r', { tries: 't', folder: 'f' }),
        courier.giveScript({ script: 's', job: 'j', directory: 'd' }),
        courier.beginScript('n', 'r'),
      ],
      ...[
        courier.startScript('/r', 'f', 'd'),
        courier.sendScript('/r', { name: 'n', directory: 'd', over: true }),
      ],
      ...[
        courier.takeScript({ tries: 't', folder: 'f' }),
        courier.tidyScript('t'),
        courier.keepScript('f', { name: 'n', directory: 'd' }),
        courier.releaseScript('/r'),
      ],
      ...[courier.errandsScript(['j/0']), courier.tokenScript('t')],
      ...[transfer.prepareScript('/d'), transfer.notesScript('/d'), transfer.finishScript('/d')],
      ...[enginesScript, answeringEnginesScript, hostScript],
      ...[transfer.markScript('/r', 'n', ['k']), transfer.unmarkScript('/r', 'n')],
    ]
    for (const script of whole) execFileSync(shell, ['-n'], { input: script })
  })

  always('evaluates a script that came to its end, and nothing of one that was cut', () => {
    const at = place()
    const script = `touch begun\ncat <<'END'\n}\nEND\necho "s is \${s-unset}" \\`
    const sent = withLastLine(script)
    const given = (input: string) => {
      const { status, stdout } = spawnSync(shell, ['-c', `${evaluated('cat')}; echo after`], {
        cwd: at,
        input,
      })
      return { status, out: stdout.toString(), hasBegun: existsSync(join(at, 'begun')) }
    }
    for (let bytes = 0; bytes < sent.length; bytes++)
      expect({ bytes, ...given(sent.slice(0, bytes)) }).toEqual({
        bytes,
        status: 125,
        out: '',
        hasBegun: false,
      })
    expect(given(sent)).toEqual({ status: 0, out: '}\ns is unset\nafter\n', hasBegun: true })
    expect(given(withLastLine('exit 7 # last'))).toMatchObject({ status: 7, out: '' })
  })

  always('gives a task in a container the name of its account, unless the task names another', () => {
    const at = place()
    const envOf = (environment: Record<string, string>): string[] => {
      const intent = { ...plainIntent('task', at, ['/usr/bin/env']), environment }
      const script = `tmp=/tmp/own user=ada\n${insideScript(intent, 'MARK')}`
      return run(script, at)
        .out.split('\n')
        .filter((line) => /^(USER|LOGNAME|HOME|TMPDIR)=/.test(line))
        .sort()
    }
    expect(envOf({})).toEqual([`HOME=${at}.home`, 'LOGNAME=ada', 'TMPDIR=/tmp/own', 'USER=ada'])
    expect(envOf({ USER: 'eve', HOME: '/h' })).toEqual([
      'HOME=/h',
      'LOGNAME=ada',
      'TMPDIR=/tmp/own',
      'USER=eve',
    ])
  })

  always(
    'leaves a task in a container the variables of its image, and takes away those of its engine',
    () => {
      const at = place()
      const [, program = ''] = /^(unset HOSTNAME [\s\S]*?\n)told=/m.exec(text('container/inside.sh')) ?? []
      const seen = (measured: '0' | '1', LANG: string | undefined): string[] => {
        const image = { LD_LIBRARY_PATH: '/usr/local/cuda/lib64', CONDA_PREFIX: '/opt/conda', BOTH: 'image' }
        const engine = { HOSTNAME: 'host', container: 'podman', APPTAINER_NAME: 'a.sif', PS1: '>' }
        const intent = { ...plainIntent('task', at, ['/usr/bin/env']), environment: { BOTH: 'task' } }
        const script = `${assign({ measured })}${program}tmp=/tmp user=ada\n${insideScript(intent, 'MARK')}`
        const given = { ...image, ...engine, ...(LANG === undefined ? {} : { LANG }) }
        return run(script, at, '', given)
          .out.trim()
          .split('\n')
          .filter((line) => !/^(PATH|PWD|SHLVL|_|USER|LOGNAME|HOME|TMPDIR|MARK)=/.test(line))
          .sort()
      }
      const own = ['BOTH=task', 'CONDA_PREFIX=/opt/conda']
      const libraries = 'LD_LIBRARY_PATH=/usr/local/cuda/lib64'
      expect(seen('1', undefined)).toEqual([...own, 'LANG=C.UTF-8', libraries])
      expect(seen('1', 'C')).toEqual([...own, 'LANG=C', libraries])
      expect(seen('0', 'de_DE.UTF-8')).toEqual([...own, 'LANG=de_DE.UTF-8', libraries])
      expect(seen('0', 'C')).toEqual([...own, 'LANG=C.UTF-8', libraries])
    },
  )

  always('starts a task with the environment that an image has as text, or with its own alone', () => {
    const at = place()
    mkdirSync(join(at, 'bin'))
    writeFileSync(join(at, 'bin', 'own-env'), '#!/bin/sh\nenv\n', { mode: 0o755 })
    const started = (program: string, given: Record<string, string>): string[] => {
      const script = taskScript(
        { ...plainIntent('task', at, [program]), environment: { OWN: '1' } },
        'MARK',
        true,
      )
      return run(script, at, '', { ...given, KUBERNETES_PORT: '1', HOSTNAME: 'pod', LC_ALL: 'C' })
        .out.trim()
        .split('\n')
        .filter((line) => !/^(PWD|SHLVL|_|HOME|TMPDIR|MARK)=/.test(line))
        .sort()
    }
    // What a shell prints for a name that is none for it, and for a language that is absent.
    const set = `export LC_ALL='xx_XX' PATH='${at}/bin:/bin'\n`
    const text = `unset LC_ALL KUBERNETES_PORT HOSTNAME ORRERY_IMAGE\nexport\n${set}`
    const own = ['LANG=C.UTF-8', 'OWN=1']
    expect(started('own-env', { ORRERY_IMAGE: text })).toEqual([
      own[0],
      'LC_ALL=xx_XX',
      own[1],
      `PATH=${at}/bin:/bin`,
    ])
    for (const given of [{}, { ORRERY_IMAGE: '' }])
      expect(started('env', given)).toEqual([...own, `PATH=${taskPath}`])
  })

  always('adds the account of a container to those of its image, where the image lacks its number', () => {
    const [, program = ''] = /^(name_account\(\) \{\n[\s\S]*?\n\}\n)/m.exec(launcher) ?? []
    const own = execFileSync('id', ['-un'], { encoding: 'utf8' }).trim()
    const added = (engine: string, account: string, ...said: string[]): string => {
      const at = place()
      const variables = assign({ engine, account, said: said.join('\n'), known: 'image' })
      expect(run(`${variables}${program}name_account`, at)).toEqual({ code: 0, out: '' })
      return existsSync(join(at, 'image.passwd')) ? read(at, 'image.passwd') : ''
    }
    const root = 'root:x:0:0:root:/root:/bin/sh'
    const line = `${own}:x:1234:100:${own}:/tmp:/bin/sh\n`
    expect(added('docker', '1234:100', '/usr/bin/env', root)).toBe(`${root}\n${line}`)
    expect(added('podman', '1234:100', 'warning: a', '/usr/bin/env')).toBe(line)
    expect(added('docker', '1234:100', root, 'other:x:12345:1234::/:')).toBe(
      `${root}\nother:x:12345:1234::/:\n${line}`,
    )
    expect(added('docker', '0:0', '/usr/bin/env', root)).toBe('')
    expect(added('docker', '1234:100', root, 'there:x:1234:5::/:')).toBe('')
    expect(added('apptainer', '1234:100', root)).toBe('')
  })

  always('an image that must be in place is neither pulled nor made, and its digest is compared', () => {
    const [other, asked] = ['a', 'b'].map((digit) => `sha256:${digit.repeat(64)}`)
    /** Launches a task with an engine that has `tools/b` alone. @returns what it was told, and why not */
    const launched = (engine: 'docker' | 'apptainer', image: string, inPlace: boolean) => {
      const at = place()
      const base = join(at, 'containers')
      mkdirSync(join(at, 'bin'))
      writeFileSync(join(at, 'told'), '')
      const script = [
        '#!/bin/sh',
        `echo "$1 $2" >> ${join(at, 'told')}`,
        'case "$1 $5" in',
        'version*) ;;',
        'info*) echo false 26 ;;',
        `'image tools/b:1') echo sha256:${'c'.repeat(64)} tools/b@${other} ;;`,
        '*) echo not found >&2; exit 1 ;;',
        'esac',
      ].join('\n')
      writeFileSync(join(at, 'bin', engine), script, { mode: 0o755 })
      const container = { image, engine, inPlace, network: false, reuse: false, scope: 'run' }
      const contact = { base, home: at, path: `${at}/bin:/usr/bin:/bin`, account: '1:1' }
      const intent = { ...plainIntent('task', join(at, 'work'), ['true']), container }
      const { argv, environment } = containerized(intent, contact, { engine, taskVariable: 'MARK' })
      const [, file = ''] = argv
      mkdirSync(join(file, '..'), { recursive: true })
      mkdirSync(join(base, 'records'))
      writeFileSync(file, launcher)
      const { status } = spawnSync(shell, argv.slice(1), { env: environment })
      const trouble = /^trouble .*$/m.exec(read(base, 'records/task'))?.[0]
      return { status, told: read(at, 'told').match(/^(pull|-q build)/m)?.[0], trouble }
    }
    const absent = (engine: string, image: string) => ({
      ...{ status: 125, told: undefined },
      trouble: expect.stringMatching(
        `^trouble refused ${engine} on .* does not have ${image}, and use-in-place .*load it there`,
      ),
    })
    expect(launched('docker', 'tools/a:1', true)).toEqual(absent('docker', 'tools/a:1'))
    expect(launched('docker', 'tools/a:1', false).told).toBe('pull')
    expect(launched('docker', `tools/b:1@${asked}`, true)).toMatchObject({
      ...{ told: undefined },
      trouble: expect.stringMatching(`asked for ${asked}, but tools/b:1 is ${other}`),
    })
    // It is there: what fails is the start of its program.
    expect(launched('docker', 'tools/b:1', true)).toMatchObject({
      ...{ told: undefined, trouble: expect.stringMatching('cannot run tools/b:1|has no /bin/sh') },
    })
    expect(launched('apptainer', '/srv/none.sif', true).trouble).toMatch(
      /^trouble refused .* has no image at \/srv\/none\.sif: no such file; put the file there/,
    )
    expect(launched('apptainer', '/srv/none.sif', false).trouble).toMatch(/no such file$/)
    expect(launched('apptainer', 'tools/a:1', true)).toEqual({
      ...absent('apptainer', 'tools/a:1'),
      trouble: expect.stringMatching(/make a SIF file of tools\/a:1, and use-in-place .*remote-file/),
    })
    expect(launched('apptainer', 'tools/a:1', false).told).toBe('-q build')
  })

  /** A host whose engine for files, under a name of its own, starts no container. */
  const fileHost = (engine: 'apptainer' | 'singularity') => {
    const at = place()
    const [base, image, bin] = [join(at, 'containers'), join(at, 'an image.sif'), join(at, 'bin')]
    for (const path of [bin, join(base, 'records')]) mkdirSync(path, { recursive: true })
    for (const name of readdirSync('/usr/bin'))
      if (!/^(apptainer|singularity)$/.test(name)) symlinkSync(join('/usr/bin', name), join(bin, name))
    const script = [
      '#!/bin/sh',
      'case $* in *" orrery "*) ;; *) echo /usr/bin/env; exit ;; esac',
      `[ ! -e ${join(at, 'removes')} ] || rm ${quote(image)}`,
      `[ -e ${quote(image)} ] || {`,
      `echo "FATAL: could not open image ${image}: no such file or directory" >&2; exit 255; }`,
      'echo the test starts nothing >&2; exit 1',
    ].join('\n')
    writeFileSync(join(bin, engine), script, { mode: 0o755 })
    writeFileSync(image, 'image')
    let tasks = 0
    const next = () => {
      const name = `task-${String(++tasks)}`
      const container = {
        ...{ image: `${image}@sha256:${hash('sha256', 'image')}`, engine: 'apptainer' as const },
        ...{ network: true, reuse: false, scope: 'run' },
      }
      const contact = { base, home: at, path: bin, account: '1:1' }
      const intent = { ...plainIntent(name, join(at, 'work'), ['true']), container }
      const { argv, environment } = containerized(intent, contact, {
        engine: 'apptainer',
        taskVariable: 'MARK',
      })
      mkdirSync(join(argv[1] ?? '', '..'), { recursive: true })
      writeFileSync(argv[1] ?? '', launcher)
      return { name, arguments: argv.slice(1), env: environment }
    }
    const troubleOf = (name: string) => /^trouble .*$/m.exec(read(base, 'records', name))?.[0]
    /** What is wrong for the next task, whose output is a file. */
    const trouble = (): string | undefined => {
      const task = next()
      const output = openSync(join(at, 'output'), 'w')
      spawnSync(shell, task.arguments, { env: task.env, stdio: ['ignore', output, output] })
      closeSync(output)
      return troubleOf(task.name)
    }
    return { at, image, next, troubleOf, trouble }
  }
  const startsNothing = expect.stringMatching(/^trouble infrastructure .*the test starts nothing$/)

  always(
    'a file of an image that leaves the site during a run, or changes there, is noticed by the next task',
    () => {
      const { at, image, trouble } = fileHost('apptainer')
      expect([trouble(), trouble()]).toEqual([startsNothing, startsNothing])
      rmSync(image)
      expect(trouble()).toMatch(/^trouble refused .* has no image at .*\.sif: no such file$/)
      writeFileSync(image, 'image')
      expect(trouble()).toEqual(startsNothing)
      writeFileSync(image, 'another image')
      expect(trouble()).toMatch(/^trouble refused the digest of .* differs/)
      writeFileSync(image, 'image')
      writeFileSync(join(at, 'removes'), '')
      expect(trouble()).toMatch(/^trouble infrastructure .* was taken away from apptainer/)
    },
  )

  always('each task of a run finds the engine of a host that has singularity alone', () => {
    const { trouble } = fileHost('singularity')
    expect([trouble(), trouble()]).toEqual([startsNothing, startsNothing])
  })

  always('a start that fails ends what would have passed on the output of its task', async () => {
    const { next, troubleOf } = fileHost('apptainer')
    const task = next()
    // Its output is no file: it ends with all that has it open.
    await once(spawn(shell, task.arguments, { env: task.env, stdio: ['ignore', 'pipe', 'pipe'] }), 'close')
    expect(troubleOf(task.name)).toEqual(startsNothing)
  })

  proved(
    'an engine that does not answer is a failure of the site that names it, and is asked once',
    async () => {
      /** What was wrong for tasks of an image at once, with an engine that hangs at a command. */
      const hanging = async (command: string, engine: 'auto' | 'docker', tasks: number) => {
        const at = place()
        const base = join(at, 'containers')
        for (const path of ['bin', 'work', 'containers/records'])
          mkdirSync(join(at, path), { recursive: true })
        const program = [
          '#!/bin/sh',
          `echo "$1" >> ${join(at, 'told')}`,
          `[ "$1" != ${command} ] || exec sleep 20`,
          `case $1 in info) echo false 26 ;; image) echo sha256:${'c'.repeat(64)} ;; esac`,
        ].join('\n')
        writeFileSync(join(at, 'bin', 'docker'), program, { mode: 0o755 })
        // `auto` would take the Podman of this machine.
        writeFileSync(join(at, 'bin', 'podman'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
        const contact = { base, home: at, path: `${at}/bin:/usr/bin:/bin`, account: '1:1' }
        const names = Array.from({ length: tasks }, (_, number) => `task-${String(number)}`)
        const commands = names.map((name) => {
          const container = { image: 'tools/a:1', engine, network: false, reuse: false, scope: 'run' }
          const intent = { ...plainIntent(name, join(at, 'work'), ['true']), container }
          return containerized(intent, contact, { engine, taskVariable: 'MARK' })
        })
        const file = commands[0]?.argv[1] ?? ''
        mkdirSync(join(file, '..'), { recursive: true })
        writeFileSync(file, launcher.replace(/^patience=\d+ copying=\d+$/m, 'patience=1 copying=1'))
        await Promise.all(
          commands.map(({ argv, environment: env }) =>
            once(spawn(shell, argv.slice(1), { env, stdio: 'ignore' }), 'close'),
          ),
        )
        const troubles = names.map((name) => /^trouble .*$/m.exec(read(base, 'records', name))?.[0])
        return { troubles, times: read(at, 'told').match(new RegExp(`^${command}$`, 'gm'))?.length }
      }
      const words = 'it did not answer for \\d+ s'
      for (const command of ['version', 'image', 'run']) {
        const trouble = expect.stringMatching(`^trouble infrastructure docker .*: ${words}$`)
        const found = await hanging(command, 'docker', 3)
        expect([command, found]).toEqual([command, { troubles: [trouble, trouble, trouble], times: 1 }])
      }
      const trouble = expect.stringMatching(`^trouble infrastructure .*docker: ${words}`)
      expect(await hanging('version', 'auto', 1)).toEqual({ troubles: [trouble], times: 1 })
    },
  )

  always('a signal for a task reaches an engine that does not answer it', async () => {
    const at = place()
    for (const path of ['bin', 'work', 'containers/records']) mkdirSync(join(at, path), { recursive: true })
    const asked = join(at, 'asked')
    const program = `#!/bin/sh\necho $$ > ${asked}.new && mv ${asked}.new ${asked} && exec sleep 86400\n`
    writeFileSync(join(at, 'bin', 'docker'), program, { mode: 0o755 })
    const container = {
      image: 'tools/a:1',
      engine: 'docker',
      network: false,
      reuse: false,
      scope: 'run',
    } as const
    const intent = { ...plainIntent('task', join(at, 'work'), ['true']), container }
    const { argv, environment } = containerized(
      intent,
      { base: join(at, 'containers'), home: at, path: `${at}/bin:/usr/bin:/bin`, account: '1:1' },
      { engine: 'docker', taskVariable: 'MARK' },
    )
    const [, file = ''] = argv
    mkdirSync(join(file, '..'), { recursive: true })
    writeFileSync(file, launcher.replace(/^patience=\d+ copying=\d+$/m, 'patience=86400 copying=86400'))
    const child = spawn(shell, argv.slice(1), { env: environment, stdio: 'ignore', detached: true })
    const closed = once(child, 'close')
    await until('the question', 120, () => existsSync(asked))
    process.kill(-Number(child.pid), 'SIGTERM')
    expect(await closed).toEqual([null, 'SIGTERM'])
    await until('the end of its client', 120, () => !existsSync(`/proc/${read(at, 'asked').trim()}`))
  })

  always(
    'what hangs after the end of its task is looked for less and less often, what is new at once',
    () => {
      const [, loop = ''] =
        /^(nap=[^\n]*\n *while remains; do[\s\S]*?\n {2}done\n)/m.exec(
          text('remote/wrapper.sh').replace(/^ {2}nap=/m, 'nap='),
        ) ?? []
      const stubs = `count=0 up=0 forced=0 polite= found=
now() { :; }
tell() { :; }
sleep() { echo "$1"; }
remains() { count=$((count + 1)); [ "$count" -le 40 ] || found=other; [ "$count" -le 42 ]; }\n`
      const naps = run(`${stubs}${loop}`, place()).out.trim().split('\n').map(Number)
      expect(naps).toHaveLength(42)
      expect(naps[0]).toBe(0.02)
      expect(naps.slice(0, 40)).toEqual(naps.slice(0, 40).toSorted((a, b) => a - b))
      expect(naps[39]).toBe(0.5)
      expect(naps[40]).toBe(0.02)
    },
  )

  always('takes parameters as they are, whatever is in them', () => {
    const at = place()
    const show =
      `${assign({ VALUE: hostile, NUMBER: 7 })}show() { printf '%s|' "$VALUE" "$NUMBER" "$@"; ` +
      `}\n${call('show', hostile, '')}`
    expect(run(show, at).out).toBe(`${hostile}|7|${hostile}||`)
    expect(readdirSync(at).sort()).toEqual(['arrays', 'tasks'])
  })

  always('a transfer: fresh, then partial with its notes, then existing with its manifest', () => {
    const at = place()
    const directory = join(at, `in ${hostile.slice(0, 9)}`)
    const { arriving } = transfer.pathsBeside(directory)
    expect(run(transfer.prepareScript(directory), at).out.split('\n')[0]).toBe('fresh')
    writeFileSync(join(arriving, 'files/a'), 'a')
    writeFileSync(join(arriving, 'notes/n'), '0 1\n')
    expect(run(transfer.prepareScript(directory), at).out.split('\n')[0]).toBe('partial')
    expect(transfer.parseNotes(Buffer.from(run(transfer.notesScript(directory), at).out, 'latin1'))).toEqual(
      new Map([['n', '0 1\n']]),
    )
    expect(run(transfer.finishScript(directory), at, '{}').code).toBe(0)
    expect(read(directory, 'a')).toBe('a')
    expect(run(transfer.prepareScript(directory), at).out).toBe('existing\n{}')
    rmSync(transfer.pathsBeside(directory).manifest)
    expect(run(transfer.prepareScript(directory), at).out).toBe('occupied\n')
  })

  always('files of a transfer come in packs and in pieces, with their modes, times and digests', () => {
    const at = place()
    const from = join(at, `from ${hostile.slice(0, 9)}`)
    const to = join(at, `to ${hostile.slice(0, 9)}`)
    const odd = 'b\udcff'
    mkdirSync(join(from, 'sub'), { recursive: true })
    writeFileSync(join(from, 'a'), 'small', { mode: 0o640 })
    writeFileSync(bytesOfPath(join(from, 'sub', odd)), '0123456789', { mode: 0o700 })
    const listed = (directory: string, paths?: { asked: string[]; parents: string[] }) =>
      [...parseTree(Buffer.from(run(transfer.listScript(directory, paths), at).out, 'latin1'), 'it')]
        .map(([path, { mode, sizeBytes }]) => `${path} ${mode.toString(8)} ${String(sizeBytes)}`)
        .toSorted()
    const whole = ['a 640 5', 'sub 755 0', `sub/${odd} 700 10`]
    expect(listed(from)).toEqual(whole)
    expect(listed(from, { asked: ['a'], parents: ['sub'] })).toEqual(whole.slice(0, 2))
    expect(run(transfer.listScript(join(at, 'none')), at).code).toBe(transfer.noDirectory)

    run(transfer.prepareScript(to), at)
    const files = join(transfer.pathsBeside(to).arriving, 'files')
    writeFileSync(join(files, 'stranger'), '')
    const names = transfer.nulList(['a']).toString('latin1')
    const lists = ['./stranger\0', './sub\0', names].map((text) => text.length)
    const [strangers = 0, directories = 0, ...packs] = lists
    const setup = transfer.setupScript(to, { strangers, directories, lists: packs })
    expect(run(setup, at, `./stranger\0./sub\0${names}`).code).toBe(0)
    expect(readdirSync(files)).toEqual(['sub'])
    const digests = new Map<string, string>()
    const note = (out: string): void => transfer.parseDigests(Buffer.from(out, 'latin1'), digests)
    note(run(transfer.unpackScript(to, 0, 5), at, run(transfer.packScript(from, 5), at, names).out).out)
    const pieces = [{ path: `sub/${odd}`, start: 0, end: 10 }]
    const bytes = run(transfer.readPiecesScript(from, pieces), at).out
    expect(bytes).toBe('0123456789')
    note(run(transfer.writePiecesScript(to, pieces, { noteOf: () => 'noted' }), at, bytes).out)
    expect(read(files, '../notes/noted')).toBe('0 10\n')
    const links = transfer.linkList([['sub/-l', { target: '../a' }]]).toString('latin1')
    const settled = transfer.settleScript(
      to,
      { links: links.length, modes: [{ mode: 0o755, length: directories }] },
      [{ path: `sub/${odd}`, mode: 0o700, modified: 1_000_000_000 }],
    )
    const { out } = run(settled, at, `${links}./sub\0`)
    expect(parseTree(Buffer.from(out, 'latin1'), 'it').get(`sub/${odd}`)).toMatchObject({
      mode: 0o700,
      modified: 1_000_000_000,
    })
    expect(read(files, 'sub/-l')).toBe('small')
    rmSync(join(files, 'sub/-l'))
    expect(listed(files)).toEqual(whole)
    const before = new Map<string, string>()
    const digest = transfer.digestScript(from, pieces)
    transfer.parseDigests(Buffer.from(run(digest, at, names).out, 'latin1'), before)
    expect(digests).toEqual(before)
    expect(digests.size).toBe(2)
  })

  always('what came for tasks goes with the last one that uses it', () => {
    const at = place()
    const stage = join(at, 'stage')
    expect(run(transfer.markScript(stage, 'one', ['k1', 'k2']), at).out).toBe('')
    mkdirSync(join(stage, 'k1'))
    expect(run(transfer.markScript(stage, 'two', ['k1', 'k2']), at).out).toBe('k1\n')
    expect(run(transfer.unmarkScript(stage, 'one'), at).out).toBe('')
    expect(run(transfer.unmarkScript(stage, 'two'), at).out).toBe('k1\nk2\n')
    expect(readdirSync(stage)).toEqual([])
    expect(run(transfer.unmarkScript(join(at, 'none'), 'two'), at).code).toBe(0)
  })

  always('the facts of a machine come to the end, and a Docker without an engine is silent', () => {
    const at = place()
    const environment = { PATH: `${at}:/usr/bin:/bin` }
    writeFileSync(join(at, 'docker'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
    writeFileSync(join(at, 'podman'), '#!/bin/sh\n', { mode: 0o755 })
    expect(run(enginesScript, at, '', environment).out).toMatch(/^docker\npodman\n/)
    expect(run(answeringEnginesScript, at, '', environment).out).toMatch(/^podman\n/)
    const facts = readHost(run(hostScript, at, '', environment).out)
    expect(facts.cores).toBeGreaterThan(0)
    expect(facts.silentEngines).toEqual(['docker'])
    expect(run(slurmScript, at, '', environment).out).toMatch(/^@@ version\n[^]*@@ failed\n[^]*@@ end\n$/)
  })

  always(
    'submissions: a name is in one array, a verdict counts once, an array goes with its last name',
    () => {
      const at = place()
      const submissions = text('batch/submissions.sh')
      const tasks = join(at, 'tasks')
      const keep = (words: string, input = ''): string => run(`${submissions}${words}`, tasks, input).out
      writeFileSync(join(tasks, 'began.task'), '')
      expect(
        keep(
          call('claim', 'one', '60', '10.5', 'a', 'b', 'began'),
          '#!/bin/sh\n0) script=a.x ;;\n1) script=b.x ;;\n',
        ),
      ).toBe('ours 0\nours 1\n')
      expect(read(at, 'arrays/one/script')).toContain('script=a.x')
      expect(keep(call('claim', 'one', '0', '11', 'a'))).toMatch(/^open \d+\n$/)
      expect(keep(call('claim', 'two', '0', '12', 'b', 'c'), '1) script=c.x ;;\n')).toBe(
        'entry b one 1 60 10.5 - - - 0 \nours 1\n',
      )
      writeFileSync(join(at, 'arrays/one/job'), '77\n')
      expect(keep(call('claim', 'one', '0', '13', 'a'))).toBe('accepted 77\n')
      writeFileSync(join(tasks, 'a.cancel'), '')
      expect(keep(call('entries', 'a', 'c', 'nobody'))).toBe(
        'entry a one 0 60 10.5 77 cancel - 0 \nentry c two 1 0 12 - - - 0 \n',
      )
      expect(keep(call('settle', 'a', 'never 20.000 not yet'))).toBe(
        'entry a one 0 60 10.5 77 cancel never 20.000 not yet\n',
      )
      expect(keep(call('settle', 'a', 'lost 21.000 NODE_FAIL on n1'))).toContain(
        'lost 21.000 NODE_FAIL on n1',
      )
      expect(keep(call('settle', 'a', 'memory 22.000 later'))).toContain('lost 21.000 NODE_FAIL on n1')
      expect(keep(call('forget', 'a'))).toBe('')
      expect(keep(call('forget', 'b', 'c'))).toBe('gone one\ngone two\n')
      expect(readdirSync(join(at, 'arrays'))).toEqual([])
      expect(keep(call('claim', 'three', '0', '1', 'd', 'e'), '0) script=d.x ;;\n')).toBe('ours 0\nours 1\n')
      keep(call('release', 'three', 'd', 'e'))
      expect(readdirSync(tasks).filter((name) => name.endsWith('.array'))).toEqual([])
    },
  )

  always(
    'submissions on a disk without room: no name counts as recorded, and none is in the way later',
    () => {
      const at = place()
      const tasks = join(at, 'tasks')
      const keep = (words: string, input = ''): string =>
        run(`${text('batch/submissions.sh')}${words}`, tasks, input).out
      const full = `trap '' XFSZ; ulimit -f 0\n`
      writeFileSync(join(tasks, 'began.task'), '')
      expect(keep(`${full}${call('claim', 'one', '0', '1', 'a', 'began', 'b')}`)).toBe(
        'failed a tee: a.array: File too large\nfailed b tee: b.array: File too large\n',
      )
      expect(readdirSync(tasks)).toEqual(['began.task'])
      // What processes left that ended before the line.
      for (const name of ['a', 'b']) writeFileSync(join(tasks, `${name}.array`), '')
      const old = Date.now() / 1000 - 3600
      utimesSync(join(tasks, 'a.array'), old, old)
      expect(keep(call('claim', 'two', '0', '2', 'a', 'b'))).toBe('ours 0\nfailed b\n')
      expect(read(tasks, 'a.array')).toBe('two 0 0 2\n')
    },
  )

  always(
    'an array finds the script of its element, puts an earlier record aside and leaves what is over',
    () => {
      const at = place()
      const elements = [
        {
          script: 'a.1',
          packed: { directory: join(at, `work ${hostile.replaceAll('/', '')}`), text: hostile },
        },
        { script: 'b.1' },
      ]
      writeFileSync(join(at, 'arrays/pack'), packOf(elements).bytes)
      const options = {
        array: 'one',
        pack: '../arrays/pack',
        folder: join(at, 'tasks'),
        command: 'echo "$script"',
        index: '$INDEX_HERE',
      }
      const start = (index: number, restarts?: string, job = '7'): { code: number | null; out: string } =>
        run(
          arrayScript(elements, {
            ...options,
            ...(restarts === undefined ? {} : { rerun: { job, restarts } }),
          }),
          at,
          '',
          { INDEX_HERE: String(index) },
        )
      for (const name of ['a', 'b']) writeFileSync(join(at, `tasks/${name}.array`), 'one 0 0 1\n')
      expect(start(0)).toEqual({ code: 0, out: 'a.1\n' })
      expect(read(at, 'tasks/a.1.run')).toBe(hostile)
      expect(start(7).code).toBe(64)
      writeFileSync(join(at, 'tasks/b.task'), 'start b.1 7 0 boot node 0 -\n')
      expect(start(1, '2')).toEqual({ code: 0, out: 'b.1\n' })
      expect(readdirSync(join(at, 'tasks'))).toContain('b.task.2')
      // Another job of the array's name, started again too.
      writeFileSync(join(at, 'tasks/b.task'), 'start b.1 7 0 boot node 0 -\n')
      expect(start(1, '3', '8')).toEqual({ code: 0, out: '' })
      expect(readdirSync(join(at, 'tasks')).filter((file) => /^b\.(task|job)/.test(file))).toEqual([
        ...['b.job', 'b.task', 'b.task.2'],
      ])
      writeFileSync(join(at, 'tasks/b.verdict'), 'lost 1 x\n')
      expect(start(1)).toEqual({ code: 0, out: '' })
      // The first job finds no pack: the second one runs the task, on a file system without links.
      for (const file of ['b.job', 'b.task', 'b.task.2', 'b.verdict']) rmSync(join(at, 'tasks', file))
      const packed = [elements[0]!, { script: 'b.1', packed: { directory: join(at, 'b'), text: 'b' } }]
      writeFileSync(join(at, 'arrays/empty'), '')
      const late = { ...options, pack: '../arrays/empty', rerun: { job: '7', restarts: '' } }
      expect(run(arrayScript(packed, late), at, '', { INDEX_HERE: '1' }).code).toBe(73)
      const links = join(at, 'no-links')
      mkdirSync(links)
      writeFileSync(join(links, 'ln'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
      const second = { ...options, rerun: { job: '8', restarts: '' } }
      expect(
        run(arrayScript(elements, second), at, '', { INDEX_HERE: '1', PATH: `${links}:/usr/bin:/bin` }),
      ).toEqual({ code: 0, out: 'b.1\n' })
      expect(read(at, 'tasks/b.job')).toBe('8\n')
      // It was given back, and another array has it by now.
      writeFileSync(join(at, 'tasks/a.array'), 'two 0 0 1\n')
      rmSync(join(at, 'tasks/a.1.run'))
      expect(start(0)).toEqual({ code: 0, out: '' })
      // It was removed, and the pack of its array is still there.
      rmSync(join(at, 'tasks/a.array'))
      expect(start(0)).toEqual({ code: 0, out: '' })
      expect(readdirSync(join(at, 'tasks'))).not.toContain('a.1.run')
    },
  )

  always('of executables at a site go those that were used longest ago, whenever they were made', () => {
    const at = place()
    const program = (name: string): string => readFileSync(join(root, 'src/drivers/transfer', name), 'utf8')
    const day = 86_400
    for (const [name, daysAgo] of [
      ['used-once', 2],
      ['arrived', 9],
    ] as const) {
      writeFileSync(join(at, name), name)
      utimesSync(join(at, name), Date.now() / 1_000 - daysAgo * day, Date.now() / 1_000 - daysAgo * day)
    }
    const settle = { ROOT: at, FROM: 'arrived', NAME: 'brought-now', ARRIVED: 'arriving/x', MANIFEST: 'x.m' }
    run(`${assign(settle)}${program('artifact-settle.sh')}`, at)
    const claim = { ROOT: at, NAME: 'next', HEX: '0', SIZE: 5, SCOPE: 'run', LIMIT: 20 }
    expect(run(`${assign(claim)}${program('artifact-claim.sh')}`, at).out).toBe('absent\n')
    expect(readdirSync(at).filter((name) => /used-once|brought-now/.test(name))).toEqual(['brought-now'])
  })

  always('records, slices and marks', () => {
    const at = place()
    const tasks = join(at, 'tasks')
    writeFileSync(join(tasks, 'a.task'), 'start a.1 1 2 boot node 3 -\nexit 0 exited 4 .\n')
    writeFileSync(join(tasks, 'b.task'), '')
    writeFileSync(join(tasks, 'b.cancel'), '')
    const records = run(`${text('remote/records.sh')}${call('records', 'a', 'b', 'c')}`, tasks).out
    expect(records.trim().split('\n').sort()).toEqual([
      'a.task:exit 0 exited 4 .',
      'a.task:start a.1 1 2 boot node 3 -',
      'cancel b',
      'claimed b',
    ])
    writeFileSync(join(tasks, 'log'), '0123456789')
    const slice = (range: Parameters<typeof sliceScript>[1], file = 'log') =>
      parseSlice(Buffer.from(run(sliceScript(file, range), tasks).out))
    expect(slice({ offset: 2, limit: 3 })).toEqual({ bytes: Buffer.from('234'), offset: 2, totalBytes: 10 })
    expect(slice({ tail: 4 })).toEqual({ bytes: Buffer.from('6789'), offset: 6, totalBytes: 10 })
    expect(slice({ tail: 40 })).toMatchObject({ offset: 0, totalBytes: 10 })
    expect(slice({ offset: 40, limit: 4 }).bytes).toHaveLength(0)
    expect(slice({ tail: 4 }, 'absent')).toEqual({ bytes: Buffer.from(''), offset: 0, totalBytes: 0 })
    run(`${text('remote/mark.sh')}${call('mark_cancelled', '12.5', '300', '', 'boot', 'a', 'fresh')}`, tasks)
    expect(read(tasks, 'fresh.task')).toBe('cancelled 12.5 .\n')
    expect(read(tasks, 'a.cancel')).toBe('300\n')
    mkdirSync(join(at, 'work/it is'), { recursive: true })
    mkdirSync(join(at, 'work/.it is.staging-x'))
    const remove = `${text('remote/each-cgroup.sh')}${text('remote/remove.sh')}`
    run(`${remove}${call('remove', 'a', join(at, 'work/it is'))}\n${call('remove', 'fresh')}`, tasks)
    expect(readdirSync(join(at, 'work'))).toEqual([])
    expect(readdirSync(tasks).sort()).toEqual(['b.cancel', 'b.task', 'log'])
  })

  always('a supervisor that starts no task does not end as one whose task ended well', () => {
    const at = place()
    writeFileSync(join(at, 'wrapper'), wrapper)
    const head = (must: string): string => `#\n# limit 0 grace 0 memory 0 bytes 0 cores 0 must ${must}\n`
    for (const name of ['gone', 'full', 'there']) writeFileSync(join(at, `tasks/${name}.1.run`), head('none'))
    writeFileSync(join(at, 'tasks/bound.1.run'), head('cgroup'))
    symlinkSync('/nonexistent/record', join(at, 'tasks/gone.task'))
    writeFileSync(join(at, 'tasks/there.task'), '')
    const supervised = (name: string, limit = '') =>
      run(`${limit}exec ${shell} wrapper foreground ${at}/tasks MARK 0 '' '' '' '' ${name}.1`, at)
    expect(supervised('none')).toEqual({ code: 97, out: 'failed none has no script\n' })
    expect(supervised('gone')).toEqual({ code: 97, out: 'failed gone\n' })
    expect(supervised('full', fullDisk)).toEqual({ code: 97, out: 'failed full cannot write its record\n' })
    expect(supervised('bound')).toEqual({
      code: 97,
      out: expect.stringContaining('refused bound memoryLimit is cgroup'),
    })
    expect(supervised('there')).toEqual({ code: 0, out: 'known there\n' })
    expect(existsSync(join(at, 'tasks/full.task'))).toBe(false)
  })

  always('what is carried to a Pod and back is the same, and its record comes last', () => {
    const [keeper, pod] = [place(), place()]
    const at = (script: string): string => courier.atKeeper(keeper, script)
    const into = (tries: string, number: number): courier.Try => ({ tries, folder: `${tries}_${number}` })
    const directory = 'work/it is'
    mkdirSync(join(keeper, directory), { recursive: true })
    mkdirSync(join(keeper, 'bin/x'), { recursive: true })
    mkdirSync(join(keeper, 'arrays/job'))
    for (const file of ['bin/x/wrapper', 'tasks/n.1.run', 'arrays/job/script', `${directory}/in`])
      writeFileSync(join(keeper, file), file)
    const parcel = run(at(courier.giveScript({ script: 'n.1', job: 'job', directory })), keeper)
    expect(run(courier.receiveScript(pod, into('.in-w', 1)), pod, parcel.out)).toEqual({ code: 0, out: '' })
    const record = join(keeper, 'tasks/n.task')
    const begin = (limit = '') =>
      spawnSync(shell, ['-c', limit + at(courier.beginScript('n', 'start n.1 0 0 - node 0'))], {
        encoding: 'utf8',
      })
    expect(begin(fullDisk)).toMatchObject({ status: 1, stdout: '', stderr: expect.stringMatching(/error/) })
    expect(existsSync(record)).toBe(false)
    // Another process creates it now, or could not write it a while ago.
    writeFileSync(record, '')
    expect(begin()).toMatchObject({ status: 1, stdout: '' })
    utimesSync(record, 0, 0)
    for (const mark of ['cancel', 'lost'].map((kind) => join(keeper, `tasks/n.${kind}`))) {
      writeFileSync(mark, '')
      expect(begin()).toMatchObject({ status: 0, stdout: 'cancelled\n' })
      rmSync(mark)
      writeFileSync(record, '')
      utimesSync(record, 0, 0)
    }
    for (let k = 0; k < 2; k++) expect(begin()).toMatchObject({ status: 0, stdout: 'start\n' })
    expect(read(record)).toMatch(/^start n\.1 0 0 - node 0 \d+\.\d+\n$/)
    expect(run(courier.startScript(pod, '.in-w_1', directory), pod).code).toBe(0)
    expect(read(pod, directory, 'in')).toBe(`${directory}/in`)
    expect(readdirSync(pod)).toContain('.go')
    expect(run(courier.receiveScript(pod, into('.in-w', 2)), pod).code).toBe(courier.codes.already)

    writeFileSync(join(pod, directory, 'out'), 'made')
    const part = 'd'.repeat(200)
    const deep = `k=0; while [ $k -lt 30 ]; do mkdir ${part} && cd -P ${part} || exit; k=$((k+1)); done; echo > low`
    execFileSync('/bin/sh', ['-c', deep], { cwd: join(pod, directory) })
    writeFileSync(join(pod, 'tasks/n.task'), 'its own record')
    writeFileSync(join(pod, '.over'), '')
    const back = run(courier.sendScript(pod, { name: 'n', directory, over: false }), pod)
    expect(back.code).toBe(0)
    expect(run(at(courier.takeScript(into('fetch/n.w', 1))), keeper, back.out)).toEqual({ code: 0, out: '' })
    expect(run(at(courier.keepScript('fetch/n.w_1', { name: 'n', directory })), keeper).code).toBe(0)
    expect(read(keeper, directory, 'out')).toBe('made')
    expect(read(keeper, 'tasks/n.task')).toBe('its own record')
    expect(read(keeper, 'ends')).toBe('n\n')
    expect(run(courier.releaseScript(pod), pod).code).toBe(0)
    expect(run(courier.sendScript(pod, { name: 'n', directory, over: true }), pod).code).toBe(
      courier.codes.already,
    )
  })
})

describe.each(shells)('%s reads large files', (shell) => {
  const look = text('remote/look.sh')
  const named = (name: string): string => {
    mkdirSync(join(folder, `${shell}-looks`), { recursive: true })
    return join(folder, `${shell}-looks`, name)
  }
  const looked = (task: string, path: string, limit = ''): string =>
    execFileSync(shell, ['-c', `${limit}${look}${call('look', task, 'a-list', path)}`], {
      cwd: join(task, '..'),
      encoding: 'utf8',
    })

  test('a reader that finds no room leaves nothing that counts, and a later one reads all', async () => {
    const [task, file] = [named('full'), named('large')]
    writeFileSync(file, 'x')
    writeFileSync(`${task}.task`, '')
    let answer = ''
    const isIn = (state: string, limit?: string) => (): boolean =>
      (answer = looked(task, file, limit)).startsWith(`${state} `)
    for (let k = 0; k < 3; k++) await until('another reader', 120, isIn('begun', 'ulimit -f 0\n'))
    expect(existsSync(`${task}.a-list.sums`)).toBe(false)
    // What a host that fell left of an answer.
    writeFileSync(`${task}.a-list.sums`, '')
    await until('a reader with room', 120, isIn('begun'))
    await until('the digest', 120, isIn('sums'))
    expect(answer).toMatch(/^sums \S+\n[0-9a-f]{64} {2}\S+\ndone\n$/)
  })

  test('one reader at a time, which ends with its task', async () => {
    const [task, file] = [named('one'), named('fifo')]
    execFileSync('mkfifo', [file])
    writeFileSync(`${task}.task`, '')
    expect(looked(task, file)).toBe(`begun ${task}\n`)
    for (let k = 0; k < 5; k++) expect(looked(task, file)).toBe(`reading ${task}\n`)
    await until('the reader', 120, () => processesGiven('sha256sum', file).length === 1)
    rmSync(`${task}.task`)
    await until('the end of the reader', 120, () => processesGiven('sha256sum', file).length === 0)
  })
})
