import { expect } from '@jest/globals'
import { sites } from '../../sites/requirements.ts'
import { needs } from '../support/needs.ts'
import { openLedgers } from './ledger-sites.ts'

/** Rounds at each kind of site. `bench/failures.ts ledgers-…` plays more, and adds them up. */
const rounds = Number(process.env['ORRERY_LEDGER_ROUNDS'] ?? 10)
const hours = 3_600_000
const say = (line: string): void => void process.stderr.write(`${line}\n`)

const play = async (at: Parameters<typeof openLedgers>[0]): Promise<void> => {
  const ledgers = await openLedgers(at, say)
  try {
    const violations: string[] = []
    for (let number = 0; number < rounds; number++)
      violations.push(...(await ledgers.play(number)).violations)
    expect(violations).toEqual([])
  } finally {
    await ledgers.close()
  }
}

needs('root').test(
  'on this machine nothing is done twice, whatever dies',
  () => play('on this machine'),
  6 * hours,
)

needs('root', ...sites.sshd).test(
  'at an SSH host nothing is done twice, whatever dies',
  () => play('at an SSH host'),
  6 * hours,
)

needs(...sites.slurm).test(
  'on a Slurm cluster nothing is done twice, whatever dies',
  () => play('on a Slurm cluster'),
  12 * hours,
)

needs(...sites.kubernetes).test(
  'on a Kubernetes cluster nothing is done twice, whatever dies',
  () => play('on a Kubernetes cluster'),
  12 * hours,
)

needs(...sites.docker).test(
  'in containers of this machine nothing is done twice, whatever dies',
  () => play('in containers of this machine'),
  12 * hours,
)
