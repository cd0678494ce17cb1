import { registerHooks } from 'node:module'

const worker = new URL('temporal-worker.ts', import.meta.url).href

/** Our own files get `@temporalio/worker` with a bundler that works once per test run; packages get the package. */
registerHooks({
  resolve: (specifier, context, next) =>
    specifier === '@temporalio/worker' && !context.parentURL?.includes('/node_modules/')
      ? { url: worker, shortCircuit: true }
      : next(specifier, context),
})
