import { openDaemon } from './programs/daemon.ts'
import { runProgram } from './programs/program.ts'

const usage = `npm start                       runs the API and a worker, with PostgreSQL and Temporal
                                unless others are named
npm start -- --print-config     shows the configuration that would be used, secrets masked
npm start -- --help | --version
docs/configuration.md lists the variables that configure it
`

/**
 * The daemon: embedded servers unless others are named, API, dispatcher and a worker. The service
 * takes a second to load, and what only asks for help or cannot be used does not wait for it.
 */
await runProgram({ name: 'orrery', usage }, async (surroundings) => {
  const { startService } = await import('./service.ts')
  return openDaemon(surroundings, startService)
})
