const worker = new URL('temporal-worker.ts', import.meta.url).pathname

/** Our own files get `@temporalio/worker` with a bundler that works once per test run; packages get the package. */
export default (path, options) =>
  path === '@temporalio/worker' && !options.basedir.includes('/node_modules/') ? worker : options.defaultResolver(path, options)
