import { openFleetWorker } from './programs/fleet.ts'
import { runProgram } from './programs/program.ts'

const usage = `npm run worker                       runs one more worker, on the named servers or on those of
                                     the daemon with the same data folder
npm run worker -- --print-config     shows the configuration that would be used, secrets masked
npm run worker -- --help | --version
docs/configuration.md lists the variables that configure it
`

/**
 * One more worker, on servers that run elsewhere or beside a daemon of this machine. As in `main.ts`,
 * arguments are read before the service is loaded.
 */
await runProgram({ name: 'orrery-worker', usage }, async (surroundings) => {
  const { startWorker } = await import('./service.ts')
  return openFleetWorker(surroundings, startWorker)
})
