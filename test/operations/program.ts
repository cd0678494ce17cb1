import { openDaemon } from '../../src/programs/daemon.ts'
import { openDatabase } from '../../src/db/pool.ts'
import { raw } from '../../src/db/sql.ts'
import { runProgram } from '../../src/programs/program.ts'
import { startService } from '../../src/service.ts'
import { threeSteps, threeStepsTable } from './three-steps.ts'

/**
 * The daemon with the tests' kind of operation; `THREE_STEPS_BUNDLE` is the file of its workflows.
 */
const codePath = process.env['THREE_STEPS_BUNDLE'] ?? ''
const usage = 'the daemon with the operations of the tests\n'

await runProgram({ name: 'orrery', usage }, (surroundings) =>
  openDaemon(surroundings, async (served) => {
    const db = openDatabase(served.endpoints.databaseUrl)
    for (const statement of threeStepsTable) await db.run(raw(statement))
    await db[Symbol.asyncDispose]()
    return startService(served, { workflowBundle: { codePath }, further: threeSteps })
  }),
)
