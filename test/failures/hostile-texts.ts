import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { openSlurmDriver } from '../../src/drivers/runtime/slurm/driver.ts'
import { startSlurm } from '../../sites/slurm.ts'
import type { Failures } from '../../bench/tally.ts'

export const perRound = 50
/** Each of them is a word of sbatch's. */
const words = ['partition', 'account', 'qos', 'reservation', 'constraint'] as const

const pieces = [
  '$(',
  '`',
  ')',
  ';',
  '&',
  '|',
  '>',
  '<',
  '\\',
  "'",
  '"',
  '*',
  '?',
  '~',
  '!',
  '#',
  '{',
  '}',
  '$HOME',
  '$@',
  '${IFS}',
  ' ',
  '-',
  '=',
  '%s',
]
const lines = ['\n', '\r', '\t', '\u0001', '\u007f']
const others = ['é', '😀', '# facts {', '--wrap', '--', '..', "'\\''"]
export const parts = { ofOneLine: [...pieces, ...others], all: [...pieces, ...lines, ...others] }

/**
 * The strings of a round, of these parts and of baits: what any of them would do, if something
 * executed it, is to make the file `bait`.
 */
export const hostileTexts = (from: readonly string[], bait: string, number: number): string[] => {
  const baits = [
    `touch ${bait}`,
    `>${bait}`,
    `$(touch ${bait})`,
    `\`touch ${bait}\``,
    `;touch ${bait};`,
    `'; touch ${bait}; '`,
    `"$(touch ${bait})"`,
  ]
  const some = fc.array(fc.constantFrom(...from, ...baits), { minLength: 1, maxLength: 8 })
  return fc.sample(
    some.map((chosen) => chosen.join('')),
    { seed: number + 1, numRuns: perRound },
  )
}

/**
 * A round: fifty strings, each as a word of sbatch's (a real one, which refuses it or not), as an
 * argument, a variable, a part of the work directory, the folder within it, an expected output and
 * a staged file of one task, which prints what it got. Each case is a string.
 */
export async function openHostileTexts(): Promise<Failures> {
  const site = await startSlurm({ slurmConf: ['MaxJobCount=100000'] })
  const root = mkdtempSync(join(site.scratch, 'root-'))
  const bait = join(site.scratch, 'bait')
  const shell = openLocalShell({
    environment: { PATH: `${site.commands}:/usr/local/bin:/usr/bin:/bin`, SLURM_CONF: site.conf },
  })
  const driver = openSlurmDriver({
    ...{ shell, root, runtime: 'c', taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 },
    configuration: { settleSeconds: 5, outputPatienceSeconds: 0 },
  })
  return {
    what: 'strings of metacharacters in every value that reaches a shell or sbatch: none executed',
    async play(number) {
      const violations: string[] = []
      const strings = hostileTexts(parts.all, bait, number)
      const oneLine = hostileTexts(parts.ofOneLine, bait, number).map((text) => text.slice(0, 255))
      // A file's name has no slash and at most 255 bytes.
      const asName = (text: string): string =>
        [...text.replaceAll('/', '\u2215')].slice(0, 40).join('').replace(/^\.+$/, 'dots')

      const name = `texts-${number}`
      const [first = '', second = '', third = '', fourth = ''] = strings.map(asName)
      const from = join(root, `from ${number} ${first}`)
      const directory = join(root, 'work', `${number} ${second}`, `1 ${first}`)
      const staged = `staged ${fourth}`
      mkdirSync(from)
      writeFileSync(join(from, staged), name)
      const task: Intent = {
        name,
        directory,
        argv: [
          '/bin/sh',
          '-c',
          'cat /proc/$$/cmdline; printf "\\0--\\0"; cat /proc/$$/environ; : > "$0"',
          third,
          ...strings,
        ],
        environment: Object.fromEntries(strings.map((text, index) => [`V${index}`, text])),
        stage: [{ from, label: first }],
        expectedOutputs: [third, fourth],
        ...{ cores: 1, memoryBytes: 0, timeoutSeconds: 0 },
      }
      const asked = oneLine.map((text, index): Intent => ({
        ...task,
        name: `${name}-${index}`,
        directory: join(directory, String(index), '1'),
        argv: ['true'],
        stage: [],
        environment: {},
        expectedOutputs: [],
        site: { [words[(number + index) % words.length] ?? 'account']: text },
      }))
      const ended = (names: readonly string[]): Promise<void> =>
        new Promise((resolve, reject) => {
          const left = new Set(names)
          const late = setTimeout(
            () => reject(new Error(`${[...left].join(', ')}: not ended within 120 s`)),
            120_000,
          )
          driver.watch(names, (one) => {
            left.delete(one)
            if (left.size > 0) return
            clearTimeout(late)
            resolve()
          })
          if (names.length === 0) resolve()
        })
      const outcomes = await driver.submit([task, ...asked])
      const taken = outcomes.flatMap((outcome) => (outcome.ok ? [outcome.name] : []))
      for (const outcome of outcomes) {
        if (outcome.name === name && !outcome.ok)
          violations.push(`the task itself was refused: ${outcome.error.message}`)
        else if (!outcome.ok && outcome.error.trouble !== 'refused')
          violations.push(`${outcome.name}: ${outcome.error.trouble}: ${outcome.error.message}`)
      }
      // What the scheduler took (without accounting it asks nobody about an account) may wait for
      // ever.
      await driver.cancel(
        taken.filter((one) => one !== name),
        0,
      )
      if (taken.includes(name)) {
        await ended([name])
        const { bytes } = await driver.logs(name, 'stdout', { offset: 0, limit: 4 * 1024 * 1024 })
        const [argv = '', environment = ''] = bytes.toString().split('\0\0--\0')
        const wanted = ['/bin/sh', '-c', task.argv[2], third, ...strings].join('\0')
        if (argv !== wanted) violations.push(`arguments came as ${JSON.stringify(argv.slice(0, 2000))}`)
        const variables = new Set(environment.split('\0'))
        for (const [key, value] of Object.entries(task.environment))
          if (!variables.has(`${key}=${value}`))
            violations.push(`${key} did not come as ${JSON.stringify(value)}`)
        const { state, manifest, missingOutputs } = await driver.collect(name)
        if (state.state !== 'ended' || state.exitCode !== 0)
          violations.push(`the task is ${JSON.stringify(state)}`)
        if (manifest.root !== directory || manifest.files.map(({ path }) => path).join() !== third)
          violations.push(`left ${JSON.stringify(manifest.files)} in ${manifest.root}`)
        if (!existsSync(join(directory, staged)) || readFileSync(join(directory, staged), 'utf8') !== name)
          violations.push(`${JSON.stringify(staged)} is not in ${JSON.stringify(directory)}`)
        if (missingOutputs.join() !== (fourth === third ? '' : fourth))
          violations.push(`${JSON.stringify(missingOutputs)} is said to be missing`)
        await driver.remove(name)
      }
      if (existsSync(bait)) violations.push(`something was executed: ${readFileSync(bait, 'utf8')}`)
      return { counted: perRound, violations }
    },
    close: async () => {
      await driver.close()
      await shell.close()
      await site.stop()
    },
  }
}
