import { expect, test } from '@jest/globals'
import { copyBuild } from './build.ts'
import { removeFolder } from './programs.ts'
import { ledgerFiles, ledgerTasks, playRounds } from './rounds.ts'

const say = (line: string): void => void process.stderr.write(`${line}\n`)

test('20 rounds of sudden death: every run completes, no attempt starts twice, no two of a task live at once', async () => {
  const rounds = await playRounds({
    seed: 20_261_121,
    rounds: 20,
    tasks: (ledger, random) => ledgerTasks(60, ledger, random),
    made: ledgerFiles,
    say,
    runSeconds: 120,
  })
  expect(rounds.flatMap(({ violations }) => violations)).toEqual([])
  expect(rounds).toHaveLength(20)
  // A third of the deaths are at a named place; one whose place was not reached is a violation
  // above.
  expect(rounds.filter(({ blow }) => blow.includes('=')).length).toBeGreaterThanOrEqual(7)
}, 1_200_000)

test('a build without intents, which acts before it records and under names that nobody can look up, is caught by the same rounds', async () => {
  const build = copyBuild([
    {
      file: 'src/executor/committing.ts',
      function: 'commitStep',
      replace: "  failpoint('before-commit')\n",
      by: `  runner.run({ type: 'start',
    positions: step.positions.filter((_, k) => step.entry.intents[k]?.ahead === false) })
  await new Promise((resolve) => setTimeout(resolve, 20))
  failpoint('before-commit')\n`,
    },
    {
      file: 'src/executor/scheduling-starts.ts',
      function: 'offer',
      replace: '  state.stage[i] = stages.offered\n',
      by: '  state.stage[i] = stages.offered\n  state.submitted.add(i)\n',
    },
    {
      file: 'src/executor/scheduling-starts.ts',
      function: 'commitAnswered',
      replace: '    state.submitted.add(i)\n',
      by: '',
    },
    {
      file: 'src/executor/scheduling-starts.ts',
      function: 'commitAnswered',
      replace: "  if (go.length > 0) state.effects.push({ type: 'start', positions: go })\n",
      by: '',
    },
    {
      file: 'src/executor/names.ts',
      function: 'intentName',
      replace: 'sha256(effectKey, position, attempt)',
      by: 'sha256(effectKey, position, attempt, process.pid)',
    },
  ])
  try {
    const rounds = await playRounds({
      seed: 8,
      rounds: 1,
      blows: [{ failpoint: 'before-commit=12' }],
      tasks: (ledger, random) => ledgerTasks(30, ledger, random),
      build,
      say,
      runSeconds: 150,
    })
    expect(rounds.flatMap(({ violations }) => violations).join('\n')).toMatch(/was started 2 times/)
  } finally {
    removeFolder(build)
  }
}, 600_000)
